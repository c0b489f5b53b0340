#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs loads of exclusive locks, and of these and shared ones, on the installed redis-server, and has two checkers judge what the
clients saw: the one of tests/history, and Porcupine, which others have written.

    tests/porcupine.py        four loads of 15 s
    tests/porcupine.py 8 30   eight of 30 s

In every second load all clients are stopped again and again, by SIGSTOP, for up to half as long again as the longest lease. So
they are in one load more, of everything that there is, which only the checker of tests/history can judge.

A load that either of them refuses is a failure, and so is one that cannot be decided, or in which little happened.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
CARGO = os.environ.get("CARGO", "cargo")
HISTORY = TARGET / "release/history"
PORCUPINE = TARGET / "porcupine/porcupine"

# In seconds, beyond what a load is to take: for the last waits, and for the checkers.
PATIENCE = 120

# What one load grants at least, in a second.
FEW = 5

# For so many seconds clients are stopped at most. The longest lease of a load is one second.
LONGEST_STOP = 1.5


class Verdict(NamedTuple):
    """What a checker says of a history."""

    passed: bool
    output: str

    def last_line(self):
        return self.output.strip().rpartition("\n")[2]


def build():
    """The load and both checkers, as far as they can be had."""
    command = [CARGO, "build", "--release", "--package", "redis-lock-history", "--bin", "history"]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "CARGO_TARGET_DIR": str(TARGET)})
    if shutil.which("go") is None:
        print("SKIPPED: Porcupine, as there is no Go", flush=True)
        return
    subprocess.run(["go", "build", "-o", str(PORCUPINE), "."], cwd=ROOT / "tests/history/porcupine", check=True)


@contextlib.contextmanager
def server(module):
    """The port of an empty server with this module."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--loadmodule", str(module)]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                # It says so itself: another program that took the port meanwhile is not mistaken for it.
                if not any("Ready to accept connections" in line for line in process.stdout):
                    raise RuntimeError(f"the server does not start with {module}")
                # Nobody reads on. A pipe that is full would stop the server.
                process.stdout.close()
                yield port
            finally:
                process.kill()


def load(port, seed, seconds, history, *options, late=10_000, stops=None):
    """What the checker of tests/history says of a new load, which is written down for other checkers, if the server may be late
    for so many milliseconds. With `stops`, a source of random numbers, its clients are stopped meanwhile."""
    command = [HISTORY, "run", "--server", f"127.0.0.1:{port}", "--seed", str(seed), "--seconds", str(seconds)]
    command += ["--calls", "1000000", "--late", str(late), "--out", history, *options]
    return judge(command, seconds + PATIENCE, stops)


@contextlib.contextmanager
def stopping(process, stops):
    """Stops a process, and lets it go on, again and again."""
    done = threading.Event()

    def stop():
        while not done.wait(stops.uniform(0.1, 1)):
            process.send_signal(signal.SIGSTOP)
            done.wait(stops.uniform(0.05, LONGEST_STOP))
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def porcupine(history):
    """What Porcupine says of a history of plain locks; nothing if there is no Porcupine."""
    if shutil.which("go") is None:
        return None
    return judge([PORCUPINE, "-timeout", "20s", history], None)


def judge(command, patience, stops=None):
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            with stopping(process, stops) if stops else contextlib.nullcontext():
                said, _ = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            return Verdict(False, f"{said}\nno end after {patience} s")
    return Verdict(process.returncode == 0, said)


def main(loads=4, seconds=15):
    build()
    command = [CARGO, "build", "--release", "--lib"]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "CARGO_TARGET_DIR": str(TARGET)})
    failed = 0
    first = int(os.environ.get("HISTORY_SEED", time.time()))
    for number in range(loads + 1):
        seed = first + number
        # The last is of everything.
        is_plain = number < loads
        stops = None if is_plain and number % 2 == 0 else random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            history = Path(folder, "history.jsonl")
            with server(TARGET / "release/libredis_lock.so") as port:
                plain = "--exclusive" if number % 4 < 2 else "--readers"
                how = plain if is_plain else "--faults"
                verdicts = [load(port, seed, seconds, history, how, stops=stops)]
            if is_plain and history.exists():
                verdicts.append(porcupine(history))
        verdicts = [verdict for verdict in verdicts if verdict]
        grants = re.search(r", (\d+) grants, ", verdicts[0].last_line())
        passed = all(verdict.passed for verdict in verdicts)
        passed = passed and grants is not None and int(grants[1]) > FEW * seconds
        failed += not passed
        for verdict in verdicts:
            print(f"seed {seed}: {verdict.last_line() if passed else verdict.output}", flush=True)
    print(f"{loads + 1 - failed} loads right, {failed} wrong or undecided")
    return not failed


if __name__ == "__main__":
    sys.exit(0 if main(*map(int, sys.argv[1:])) else 1)
