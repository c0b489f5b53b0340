#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs loads of locks on the installed redis-server. Two checkers judge the recorded histories: the checker of tests/history, and
Porcupine, an independent one.

    tests/porcupine.py        four loads of 15 s
    tests/porcupine.py 8 30   eight loads of 30 s

Half of the loads have exclusive locks only, the other half shared locks too. In every second load, SIGSTOP stops all clients
repeatedly, for up to 1.5 times the longest lease. One more load with stops uses all features. Only the checker of tests/history
can judge that load.

A load fails if a checker rejects it or cannot decide, or if it had few grants.
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

# Seconds in addition to the duration of a load, for the last waits and for the checkers.
PATIENCE = 120

# The minimum number of grants of a load, in a second.
FEW = 5

# The longest stop of the clients in seconds. The longest lease of a load is one second.
LONGEST_STOP = 1.5


class Verdict(NamedTuple):
    """The verdict of a checker on a history."""

    passed: bool
    output: str

    def last_line(self):
        return self.output.strip().rpartition("\n")[2]


def build():
    """Builds the load and both checkers. Without Go, Porcupine is left out."""
    command = [CARGO, "build", "--release", "--package", "redis-lock-history", "--bin", "history"]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "CARGO_TARGET_DIR": str(TARGET)})
    if shutil.which("go") is None:
        print("SKIPPED: Porcupine, as there is no Go", flush=True)
        return
    subprocess.run(["go", "build", "-o", str(PORCUPINE), "."], cwd=ROOT / "tests/history/porcupine", check=True)


@contextlib.contextmanager
def server(module):
    """Starts an empty server with this module, and yields its port."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--loadmodule", str(module)]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                # Reads the log of the server, because another program may have taken the port meanwhile.
                if not any("Ready to accept connections" in line for line in process.stdout):
                    raise RuntimeError(f"the server does not start with {module}")
                # Nothing reads the pipe from here on, and a full pipe would block the server.
                process.stdout.close()
                yield port
            finally:
                process.kill()


def load(port, seed, seconds, history, *options, late=10_000, stops=None):
    """Runs a load, writes its history to a file, and returns the verdict of the checker of tests/history.

    The server may be late by `late` milliseconds. With `stops`, a source of random numbers, the clients are stopped repeatedly.
    """
    command = [HISTORY, "run", "--server", f"127.0.0.1:{port}", "--seed", str(seed), "--seconds", str(seconds)]
    command += ["--calls", "1000000", "--late", str(late), "--out", history, *options]
    return judge(command, seconds + PATIENCE, stops)


@contextlib.contextmanager
def stopping(process, stops):
    """Stops and continues a process repeatedly."""
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
    """Returns the verdict of Porcupine on a history of plain locks, or None without Go."""
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
        # The last load uses all features.
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
