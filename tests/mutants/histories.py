#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts the bugs of tests/mutants into the module, one after the other, and looks whether histories of clients show them.

    tests/mutants/histories.py               all that such a load can meet
    tests/mutants/histories.py token lease   those that have one of the words in their names

Each gets four loads on the installed redis-server: of everything, with clients that are killed, unblocked and paused, and of
scenes that chance seldom brings about, for the checker of tests/history; and of exclusive locks, and of these and shared ones,
for Porcupine and for that checker. Without a bug all of them must be content. BOTH and SCENE say which must be found. Of the
others it depends on how the calls meet, or nobody can see them who knows only what clients are told; the tests must find all.
"""

import re
import shutil
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

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
    "seen-end-forgotten": "subscribers to Redisson's channel",
    "confirmed-shorter-unannounced": "subscribers to Redisson's channel",
    "told-though-handed-over": "subscribers to Redisson's channel",
    "watchers-not-told": "transactions that watch a lock",
}

# What the loads of plain locks meet often, so both checkers must refuse it.
BOTH = ("lease-runs-while-waiting", "old-token-passes", "release-of-anothers", "retry-counts-twice")
# What a scene brings about each time it is played, so the checker must refuse it; or it ends the server, which counts as well.
SCENE = (
    "cancel-before-the-call",
    "cancel-takes-a-later-hold",
    "ended-permits-uncounted-twice",
    "ephemeral-outlives",
    "grants-in-a-pause",
    "guard-ignores-the-lease",
    "half-of-several-is-kept",
    "left-but-queued",
    "one-permit-too-many",
    "re-entry-shortens",
    "retry-loses-its-place",
    "several-make-way-at-one",
    "unconfirmed-for-ever",
    "unheard-is-granted",
    "upgrade-behind-the-queue",
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
# In seconds. A scene with a bug takes five.
LASTS = 6
SCENES_LAST = 8


def rules(verdict):
    """What a checker of tests/history has refused, and how often; or how the load ended without a history."""
    found = Counter(re.findall(r"^(\w+) on \S+: ", verdict.output, re.MULTILINE))
    if found:
        return ", ".join(f"{rule} {count}" for rule, count in found.most_common())
    return "nothing" if verdict.passed else verdict.last_line()


def caught_itself(port):
    """How many defects the module has caught in itself, and repaired: clients need not see any of those."""
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        stream.write(b"INFO lock\r\n")
        stream.flush()
        length = int(stream.readline()[1:])
        return int(re.search(rb"^lock_internal_errors:(\d+)", stream.read(length), re.MULTILINE)[1])


class Seen(NamedTuple):
    """Who has refused a module: the checker of tests/history, Porcupine, or the module itself; and what all say."""

    says: str
    by_checker: bool
    by_porcupine: bool
    by_module: bool


def look(module):
    """What the checkers say of the four loads, and the module of itself. A load that ends its server is refused."""
    caught = 0
    wrong = {}

    def made(history, seconds, *options, **limits):
        nonlocal caught
        history.unlink(missing_ok=True)
        with porcupine.server(module) as port:
            verdict = porcupine.load(port, SEED, seconds, history, *options, **limits)
            try:
                caught += caught_itself(port)
            except (OSError, ValueError):
                return porcupine.Verdict(False, f"{verdict.output}\nthe server has ended")
        return verdict

    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder, "history.jsonl")
        loads = {
            "everything": made(history, LASTS, "--faults", "--scenes", "1"),
            "scenes": made(history, SCENES_LAST, *SCENES, late=LATE),
        }
        for plain in ("exclusive", "readers"):
            loads[plain] = made(history, LASTS, f"--{plain}")
            second = porcupine.porcupine(history) if history.exists() else None
            if second and not second.passed:
                refused = re.search(r"\d+ wrong.*", second.last_line())
                wrong[plain] = refused[0] if refused else second.last_line()
    says = " | ".join(f"{load}: {rules(verdict)}" for load, verdict in loads.items())
    of_porcupine = ", ".join(f"{load} {what}" for load, what in wrong.items()) or "nothing"
    says += f" | Porcupine: {of_porcupine} | the module itself: {caught or 'nothing'}"
    by_checker = not all(verdict.passed for verdict in loads.values())
    return Seen(says, by_checker, bool(wrong), caught > 0)


def main(*words):
    chosen = [mutant for mutant in run.mutants() if not words or any(word in mutant.name for word in words)]
    if not chosen:
        sys.exit("no such mutants")
    porcupine.build()
    run.copy_sources()
    run.cargo("build", "--release", "--lib")
    module = run.ENVIRONMENT["REDIS_LOCK_MODULE"]
    seen = look(module)
    print(f"without a bug | {seen.says}", flush=True)
    if any(seen[1:]):
        sys.exit("what is refused without a bug tells nothing")
    found = only_by_module = tried = 0
    missed = []
    for mutant in chosen:
        if mutant.name in NEEDED:
            print(f"{mutant.name} | left out: needs {NEEDED[mutant.name]}", flush=True)
            continue
        tried += 1
        try:
            with run.applied(mutant):
                run.cargo("build", "--release", "--lib")
                seen = look(module)
        except run.Trouble as trouble:
            sys.exit(f"{mutant.name}: {trouble}")
        by_any = seen.by_checker or seen.by_porcupine
        found += by_any
        only_by_module += seen.by_module and not by_any
        second = seen.by_porcupine or mutant.name in SCENE or shutil.which("go") is None
        if mutant.name in (*BOTH, *SCENE) and not (seen.by_checker and second):
            missed.append(mutant.name)
        print(f"{mutant.name} | {seen.says}", flush=True)
    print(f"{found} of {tried} were seen by a checker, {only_by_module} more by the module alone")
    if missed:
        sys.exit(f"not seen, though they must be: {', '.join(missed)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
