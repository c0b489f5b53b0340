#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts the bugs of tests/mutants into the module, one after the other, and looks whether histories of clients show them.

    tests/mutants/histories.py               all that such a load can meet
    tests/mutants/histories.py token lease   those that have one of the words in their names

Each gets three loads on the installed redis-server: of everything, with clients that are killed, unblocked and paused, and of
scenes that chance seldom brings about, for the checker of tests/history; and of exclusive locks, for Porcupine and for that
checker. Without a bug all of them must be content. BOTH and SCENE say which must be found. Of the others it depends on how the
calls meet, or nobody can see them who knows only what clients are told; the tests must find all.
"""

import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import run

sys.path.insert(0, str(run.ROOT / "tests"))
import porcupine  # noqa: E402

# What the load does not have, and without which these bugs have no effect.
NEEDED = {
    "demotion-leaves-waiters": "a replica",
    "hand-over-not-replicated": "a replica",
    "relative-expiry": "a replica, or a restart after the load",
    "unacknowledged-stands": "a replica",
    "watchdog-renews-anothers": "a replica",
    "migration-frees": "a cluster",
    "counter-in-two-places": "a cluster",
    "quarantine-a-second-short": "a restart without data",
    "quarantine-skipped": "a restart without data",
    "deletion-unnoticed": "strangers who write to keys",
    "memory-before-the-key": "strangers who write to keys",
    "newcomers-never-look": "strangers who write to keys",
    "token-begins-anew": "strangers who write to keys",
    "write-in-a-notification": "strangers who write to keys",
    "guard-trusts-the-first-look": "guarded scripts",
    "guarded-write-begins-anew": "a cluster",
    "told-though-handed-over": "subscribers to Redisson's channel",
    "watchers-not-told": "transactions that watch a lock",
}

# What every load of exclusive locks meets often, so both checkers must refuse it.
BOTH = ("lease-runs-while-waiting", "old-token-passes", "release-of-anothers", "retry-counts-twice")
# What a scene brings about each time it is played, so the checker must refuse it.
SCENE = (
    "cancel-before-the-call",
    "cancel-takes-a-later-hold",
    "ephemeral-outlives",
    "guard-ignores-the-lease",
    "half-of-several-is-kept",
    "left-but-queued",
    "one-permit-too-many",
    "re-entry-shortens",
    "retry-loses-its-place",
    "several-make-way-at-one",
    "unconfirmed-for-ever",
    "unheard-is-granted",
    "upgrade-keeps-its-token",
    "upgraders-wait-for-ever",
    "victim-stays-queued",
    "wait-outlives-its-connection",
    "waits-that-wait-for-each-other",
    "watchdog-of-the-dead",
    "watchdog-without-end",
    "writer-leaves-readers-asleep",
)

# A hold that is to last does so for eight seconds there, and whoever is not served waits for five: longer than the server may
# be late.
SCENES = ("--clients", "2", "--listeners", "0", "--scenes", "3")
LATE = 1_000

SEED = 1
SECONDS = 8


def rules(verdict):
    """What a checker of tests/history has refused, and how often; or how the load ended without a history."""
    found = Counter(re.findall(r"^(\w+) on \S+: ", verdict.output, re.MULTILINE))
    if found:
        return ", ".join(f"{rule} {count}" for rule, count in found.most_common())
    return "nothing" if verdict.passed else f"no history: {verdict.last_line()}"


def look(module):
    """What the checker says of everything, of scenes, and of exclusive locks, and Porcupine of the latter; which has refused any."""
    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder, "history.jsonl")
        with porcupine.server(module) as port:
            everything = porcupine.load(port, SEED, SECONDS, history, "--faults", "--scenes", "1")
        with porcupine.server(module) as port:
            scenes = porcupine.load(port, SEED, SECONDS, history, *SCENES, late=LATE)
        history.unlink(missing_ok=True)
        with porcupine.server(module) as port:
            exclusive = porcupine.load(port, SEED, SECONDS, history, "--exclusive")
        second = porcupine.porcupine(history) if history.exists() else None
    refused = re.search(r"\d+ wrong.*", second.last_line()) if second else None
    by_checker = not (everything.passed and scenes.passed and exclusive.passed)
    by_porcupine = second is not None and not second.passed
    says = f"everything: {rules(everything)} | scenes: {rules(scenes)} | exclusive: {rules(exclusive)}"
    says += f" | Porcupine: {refused[0] if refused else 'not asked'}"
    return says, by_checker, by_porcupine


def main(*words):
    chosen = [mutant for mutant in run.mutants() if not words or any(word in mutant.name for word in words)]
    if not chosen:
        sys.exit("no such mutants")
    porcupine.build()
    run.copy_sources()
    run.cargo("build", "--release", "--lib")
    module = run.ENVIRONMENT["REDIS_LOCK_MODULE"]
    says, by_checker, by_porcupine = look(module)
    print(f"without a bug | {says}", flush=True)
    if by_checker or by_porcupine:
        sys.exit("what is refused without a bug tells nothing")
    found = tried = 0
    missed = []
    for mutant in chosen:
        if mutant.name in NEEDED:
            print(f"{mutant.name} | left out: needs {NEEDED[mutant.name]}", flush=True)
            continue
        tried += 1
        try:
            with run.applied(mutant):
                run.cargo("build", "--release", "--lib")
                says, by_checker, by_porcupine = look(module)
        except run.Trouble as trouble:
            sys.exit(f"{mutant.name}: {trouble}")
        found += by_checker or by_porcupine
        second = by_porcupine or mutant.name in SCENE or shutil.which("go") is None
        if mutant.name in (*BOTH, *SCENE) and not (by_checker and second):
            missed.append(mutant.name)
        print(f"{mutant.name} | {says}", flush=True)
    print(f"{found} of {tried} were seen")
    if missed:
        sys.exit(f"not seen, though they must be: {', '.join(missed)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
