#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adds one bug of tests/mutants at a time to the module, and checks whether client histories show it.

    tests/mutants/histories.py               all bugs that such a load can reach
    tests/mutants/histories.py token lease   the bugs with one of these words in their names

Each bug gets four loads on the installed redis-server. One load uses every feature, and kills, unblocks and pauses clients. One
load plays scenes that are rare in random loads. Two loads use exclusive locks, one of them also shared locks; Porcupine judges
these two. The checker of tests/history judges all four. Without a bug, no load may be refused.

The bugs in BOTH and SCENE must be found. Other bugs appear only with some timings, or not in replies to clients at all. The
tests must find every bug.
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

sys.path.insert(0, str(run.ROOT / "tests/scripts"))
import porcupine  # noqa: E402

# Requirements of bugs that no load meets.
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
    "deletion-unnoticed": "external clients that write to keys",
    "memory-before-the-key": "external clients that write to keys",
    "newcomers-never-look": "external clients that write to keys",
    "token-begins-anew": "external clients that write to keys",
    "write-in-a-notification": "external clients that write to keys",
    "guard-trusts-the-first-look": "guarded scripts",
    "guarded-write-begins-anew": "a cluster",
    "told-though-handed-over": "subscribers to Redisson's channel",
    "watchers-not-told": "transactions that watch a lock",
}

# Plain loads reach these bugs often, so both checkers must refuse them.
BOTH = ("lease-runs-while-waiting", "old-token-passes", "release-of-anothers", "retry-counts-twice")
# A scene always triggers these bugs, so the checker must refuse them. Ending the server counts, too.
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
    "upgrade-behind-the-queue",
    "upgrade-keeps-its-token",
    "upgraders-wait-for-ever",
    "victim-stays-queued",
    "waits-that-wait-for-each-other",
    "watchdog-of-the-dead",
    "watchdog-without-end",
    "writer-leaves-readers-asleep",
)

# Long holds last eight seconds in scenes, and waits that get no reply five: longer than the server may be late.
SCENES = ("--clients", "2", "--scenes", "3")
LATE = 1_000

SEED = 1
# In seconds. A scene takes five seconds with a bug.
LENGTH = 6
SCENES_LENGTH = 8


def rules(verdict):
    """The violated rules of a verdict with counts, or the end of a load without a history."""
    found = Counter(re.findall(r"^(\w+) on \S+: ", verdict.output, re.MULTILINE))
    if found:
        return ", ".join(f"{rule} {count}" for rule, count in found.most_common())
    return "nothing" if verdict.passed else verdict.last_line()


def internal_errors(port):
    """The number of defects that the module found and repaired. Clients may see none of them."""
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        stream.write(b"INFO lock\r\n")
        stream.flush()
        length = int(stream.readline()[1:])
        return int(re.search(rb"^lock_internal_errors:(\d+)", stream.read(length), re.MULTILINE)[1])


class Seen(NamedTuple):
    """Whether the checker of tests/history, Porcupine, or the module itself found a bug, and a summary."""

    summary: str
    by_checker: bool
    by_porcupine: bool
    by_module: bool


def judge(module):
    """Runs the four loads on a module. A load that ends its server counts as refused."""
    caught = 0
    wrong = {}

    def play(history, seconds, *options, **limits):
        nonlocal caught
        history.unlink(missing_ok=True)
        with porcupine.server(module) as port:
            verdict = porcupine.load(port, SEED, seconds, history, *options, **limits)
            try:
                caught += internal_errors(port)
            except (OSError, ValueError):
                return porcupine.Verdict(False, f"{verdict.output}\nthe server has ended")
        return verdict

    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder, "history.jsonl")
        loads = {
            "everything": play(history, LENGTH, "--faults", "--scenes", "1"),
            "scenes": play(history, SCENES_LENGTH, *SCENES, late=LATE),
        }
        for plain in ("exclusive", "readers"):
            loads[plain] = play(history, LENGTH, f"--{plain}")
            second = porcupine.porcupine(history) if history.exists() else None
            if second and not second.passed:
                refused = re.search(r"\d+ wrong.*", second.last_line())
                wrong[plain] = refused[0] if refused else second.last_line()
    summary = " | ".join(f"{load}: {rules(verdict)}" for load, verdict in loads.items())
    of_porcupine = ", ".join(f"{load} {what}" for load, what in wrong.items()) or "nothing"
    summary += f" | Porcupine: {of_porcupine} | the module itself: {caught or 'nothing'}"
    by_checker = not all(verdict.passed for verdict in loads.values())
    return Seen(summary, by_checker, bool(wrong), caught > 0)


def main(*words):
    chosen = [mutant for mutant in run.mutants() if not words or any(word in mutant.name for word in words)]
    if not chosen:
        sys.exit("no mutant matches")
    porcupine.build()
    run.copy_sources()
    run.cargo("build", "--release", "--lib")
    module = run.ENVIRONMENT["REDIS_LOCK_MODULE"]
    seen = judge(module)
    print(f"without a bug | {seen.summary}", flush=True)
    if any(seen[1:]):
        sys.exit("a load without a bug is refused, so the results would mean nothing")
    found = only_by_module = tried = 0
    missed = []
    for mutant in chosen:
        if mutant.name in NEEDED:
            print(f"{mutant.name} | skipped: needs {NEEDED[mutant.name]}", flush=True)
            continue
        tried += 1
        try:
            with run.applied(mutant):
                run.cargo("build", "--release", "--lib")
                seen = judge(module)
        except run.Trouble as trouble:
            sys.exit(f"{mutant.name}: {trouble}")
        by_any = seen.by_checker or seen.by_porcupine
        found += by_any
        only_by_module += seen.by_module and not by_any
        second = seen.by_porcupine or mutant.name in SCENE or shutil.which("go") is None
        if mutant.name in (*BOTH, *SCENE) and not (seen.by_checker and second):
            missed.append(mutant.name)
        print(f"{mutant.name} | {seen.summary}", flush=True)
    print(f"a checker found {found} of {tried}, the module alone {only_by_module} more")
    if missed:
        sys.exit(f"not found, though required: {', '.join(missed)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
