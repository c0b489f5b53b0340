#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts the bugs of tests/mutants into the module, one after the other, and looks whether histories of clients show them.

    tests/mutants/histories.py               all that such a load can meet
    tests/mutants/histories.py token lease   those that have one of the words in their names

Each gets two loads on the installed redis-server: of everything, with clients that are killed, unblocked and paused, for the
checker of tests/history; and of exclusive locks, for Porcupine and for that checker. A bug that AIMS names gets a third one, in
which half of the calls use what the bug is in. Without a bug all of them must be content.
What is found depends on how the calls meet. Only what every load meets must be found, by both; the tests must find all.
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
    "token-begins-anew": "strangers who write to keys",
    "write-in-a-notification": "strangers who write to keys",
    "guard-trusts-the-first-look": "guarded scripts",
    "told-though-handed-over": "subscribers to Redisson's channel",
    "watchers-not-told": "transactions that watch a lock",
}

# Leases of seconds, few clients, and waits that are given up: who waits for nothing is seen to, and a queue is at rest.
LONG = "--stretch 20 --late 500 --patience 2000 --clients 6 --keys 3 --calls-per-key 20"
# Many holds of few locks, which last for milliseconds.
SHORT = "--late 1000 --patience 3000 --calls-per-key 40"
AIMED = {
    "readers": f"--often shared {SHORT}",
    "readers who wait": f"--often shared {LONG}",
    "several": f"--often several,cancel {SHORT}",
    "several who wait": f"--often several {LONG}",
    "cancels": f"--often cancel {SHORT}",
    "connections": f"--often bound --broken 150 {LONG}",
    "guards": f"--often shared,guard {SHORT}",
    "messages": f"--listeners 6 --broken 100 {LONG}",
    "cuts": f"--broken 300 --faults {LONG}",
}

# The load that is aimed at what the bug is in.
AIMS = {
    "answer-taken-back": "several",
    "asleep-at-the-first-lock": "several who wait",
    "cancel-before-the-call": "cancels",
    "cancel-takes-a-later-hold": "cancels",
    "ended-permits-uncounted-twice": "readers",
    "ephemeral-outlives": "connections",
    "first-end-unwatched": "readers who wait",
    "guard-ignores-the-lease": "guards",
    "half-of-several-is-kept": "several who wait",
    "late-release-frees-a-permit": "readers",
    "left-but-queued": "cuts",
    "one-permit-too-many": "readers",
    "re-entry-shortens": "readers",
    "reader-not-counted": "readers who wait",
    "reader-passes-writer": "readers",
    "retry-loses-its-place": "cuts",
    "revoke-frees-a-later-hold": "cuts",
    "revoked-lease-stays": "cuts",
    "revoked-token-stays": "cuts",
    "several-make-way-at-one": "several who wait",
    "told-too-late": "messages",
    "unblocked-twice": "cuts",
    "unconfirmed-for-ever": "messages",
    "unheard-is-granted": "messages",
    "upgrade-behind-the-queue": "readers who wait",
    "upgrade-keeps-its-token": "readers",
    "upgraders-wait-for-ever": "readers who wait",
    "victim-stays-queued": "several who wait",
    "wait-outlives-its-connection": "messages",
    "waits-that-wait-for-each-other": "several who wait",
    "watchdog-of-the-dead": "connections",
    "watchdog-without-end": "connections",
    "writer-leaves-readers-asleep": "readers who wait",
}

# What every load meets often, so both checkers must refuse it.
SURE = ("old-token-passes", "release-of-anothers", "retry-counts-twice")

SEED = 1
SECONDS = 8


def rules(verdict):
    """What a checker of tests/history has refused, and how often; or how the load ended without a history."""
    found = Counter(re.findall(r"^(\w+) on \S+: ", verdict.output, re.MULTILINE))
    if found:
        return ", ".join(f"{rule} {count}" for rule, count in found.most_common())
    return "nothing" if verdict.passed else f"no history: {verdict.last_line()}"


def look(module, aims):
    """What the checker says of everything, of exclusive locks, and of these loads, and Porcupine of the exclusive ones; which of
    the two has refused any."""
    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder, "history.jsonl")
        with porcupine.server(module) as port:
            everything = porcupine.load(port, SEED, SECONDS, history, "--faults")
        history.unlink(missing_ok=True)
        with porcupine.server(module) as port:
            exclusive = porcupine.load(port, SEED, SECONDS, history, "--exclusive")
        second = porcupine.porcupine(history) if history.exists() else None
        aimed = {}
        for aim in aims:
            with porcupine.server(module) as port:
                aimed[aim] = porcupine.load(port, SEED, SECONDS, history, *AIMED[aim].split())
    refused = re.search(r"\d+ wrong.*", second.last_line()) if second else None
    by_checker = not all(verdict.passed for verdict in (everything, exclusive, *aimed.values()))
    by_porcupine = second is not None and not second.passed
    says = f"everything: {rules(everything)} | exclusive: {rules(exclusive)} | Porcupine: {refused[0] if refused else 'not asked'}"
    says += "".join(f" | {aim}: {rules(verdict)}" for aim, verdict in aimed.items())
    return says, by_checker, by_porcupine


def main(*words):
    chosen = [mutant for mutant in run.mutants() if not words or any(word in mutant.name for word in words)]
    if not chosen:
        sys.exit("no such mutants")
    porcupine.build()
    run.copy_sources()
    run.cargo("build", "--release", "--lib")
    module = run.ENVIRONMENT["REDIS_LOCK_MODULE"]
    says, by_checker, by_porcupine = look(module, AIMED)
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
                says, by_checker, by_porcupine = look(module, [AIMS[mutant.name]] if mutant.name in AIMS else [])
        except run.Trouble as trouble:
            sys.exit(f"{mutant.name}: {trouble}")
        found += by_checker or by_porcupine
        if mutant.name in SURE and not (by_checker and (by_porcupine or shutil.which("go") is None)):
            missed.append(mutant.name)
        print(f"{mutant.name} | {says}", flush=True)
    print(f"{found} of {tried} were seen")
    if missed:
        sys.exit(f"not seen by both: {', '.join(missed)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
