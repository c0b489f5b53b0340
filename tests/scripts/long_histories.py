#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs loads with sessions and faults on all servers of the tests, until their histories have CALLS calls:

    tests/scripts/long_histories.py 10000000
    tests/scripts/long_histories.py 100000 redis-server    only this server

A load takes 30 s on an empty server. Three of its clients have sessions. Three kinds of loads take turns, see LOADS. The checker
of tests/history judges each history. A wrong one is kept, and ends the run.
"""

import concurrent.futures
import itertools
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import porcupine
import run as tests
from porcupine import TARGET

SECONDS = 30
# A load keeps its server and its clients busy for half of the time.
CONCURRENT = 2 * (os.cpu_count() or 1)
# The options of each kind of load, the delay that the checker tolerates, in milliseconds, and whether SIGSTOP suspends clients.
FAULTS = ("--scenes", "1", "--faults")
LOADS = (
    (FAULTS, 10_000, False),
    (FAULTS, 10_000, True),
    # After a fault, any wait may be long. So only a load without faults shows a wait that nobody ends. Its holds last 8 s.
    (("--clients", "2", "--scenes", "3"), 2_000, False),
)
REPORT = re.compile(
    r"(?P<calls>\d+) calls on (?P<locks>\d+) locks, (?P<grants>\d+) grants, (?P<unknown>\d+) outcomes unknown; "
    r"(?P<holds>\d+) certain holds, (?P<pairs>\d+) pairs compared, .* (?P<violations>\d+) violations"
)


def programs():
    """The servers of the list that can run the module and are installed here."""
    listed = [words[3] for words in tests.server_list() if words[-1] != "too_old"]
    paths = [str(TARGET / "servers" / path) if "/" in path else path for path in listed]
    installed = [path for path in paths if shutil.which(path)]
    for path in sorted({*paths} - {*installed}):
        print(f"SKIPPED: {path} is not installed")
    return installed


def one_load(program, seed, kind):
    """The figures of a load. Raises an error if its history is wrong."""
    options, late, suspends = LOADS[kind]
    with porcupine.server(TARGET / "release/libredis_lock.so", program) as port:
        folder = tempfile.mkdtemp(prefix="history-")
        history = Path(folder, "history.jsonl")
        stops = random.Random(seed) if suspends else None
        verdict = porcupine.load(port, seed, SECONDS, history, "--sessions", "3", *options, late=late, stops=stops)
    report = REPORT.search(verdict.last_line())
    if not verdict.passed or not report or int(report["grants"]) < porcupine.MIN_GRANTS * SECONDS:
        raise RuntimeError(f"{program}, load {kind}, seed {seed}, {history}:\n{verdict.output}")
    shutil.rmtree(folder)
    return {name: int(number) for name, number in report.groupdict().items()}


def main(calls, *only):
    porcupine.build()
    servers = only or programs()
    assert servers, "no servers"
    first = int(os.environ.get("HISTORY_SEED", time.time()))
    numbers, totals, wrong, lock = itertools.count(), defaultdict(Counter), [], threading.Lock()

    def next_number():
        with lock:
            is_done = wrong or sum(total["calls"] for total in totals.values()) >= calls
            return None if is_done else next(numbers)

    def work():
        while (number := next_number()) is not None:
            lap, place = divmod(number, len(servers))
            try:
                figures = one_load(servers[place], first + number, lap % len(LOADS))
                with lock:
                    totals[servers[place]].update(figures, loads=1)
                print(f"load {number}, {servers[place]}: {figures}", flush=True)
            except Exception as error:
                wrong.append(str(error))

    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(CONCURRENT) as pool:
        for _ in range(CONCURRENT):
            pool.submit(work)
    everything = Counter()
    for program, total in totals.items():
        everything.update(total)
        print(f"{program.removeprefix(f'{TARGET}/servers/')}: {', '.join(f'{total[name]:,} {name}' for name in total)}")
    print(f"together: {', '.join(f'{everything[name]:,} {name}' for name in everything)}")
    print(f"{len(wrong)} failed loads, in {(time.monotonic() - started) / 60:.0f} min")
    print("\n".join(wrong))
    return not wrong


if __name__ == "__main__":
    sys.exit(0 if main(int(sys.argv[1]), *sys.argv[2:]) else 1)
