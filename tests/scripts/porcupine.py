#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs loads of exclusive and shared locks on the installed redis-server. One client of each has a session. Two checkers judge
the clients' observations: the one of tests/history, and Porcupine, a linearizability checker by other authors.

    tests/scripts/porcupine.py        four loads of 15 s
    tests/scripts/porcupine.py 8 30   eight loads of 30 s

In every second load, SIGSTOP repeatedly suspends all clients, for up to 1.5 times the longest lease. One additional load uses
every feature, also with suspended clients; only the checker of tests/history can judge it.

A load fails if a checker refuses it or cannot decide, or if it has too few grants.
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

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
CARGO = os.environ.get("CARGO", "cargo")
HISTORY = TARGET / "release/history"
PORCUPINE = TARGET / "porcupine/porcupine"

# In seconds, beyond the length of a load: for the last waits, and for the checkers.
TIMEOUT = 120

# Minimum number of grants per second in a load.
MIN_GRANTS = 5

# Maximum time in seconds that clients are suspended. The longest lease of a load is one second.
LONGEST_STOP = 1.5


class Verdict(NamedTuple):
    """A checker's judgment of a history."""

    passed: bool
    output: str

    def last_line(self):
        return self.output.strip().rpartition("\n")[2]


def build():
    """Builds the module, the load and this project's checker, and Porcupine if Go is installed."""
    for what in ["--lib"], ["--package", "redis-lock-history", "--bin", "history"]:
        command = [CARGO, "build", "--release", *what]
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "CARGO_TARGET_DIR": str(TARGET)})
    if shutil.which("go") is None:
        print("SKIPPED: Porcupine needs Go, which is not installed", flush=True)
        return
    subprocess.run(["go", "build", "-o", str(PORCUPINE), "."], cwd=ROOT / "tests/history/porcupine", check=True)


@contextlib.contextmanager
def server(module, program="redis-server"):
    """Starts an empty server with this module. Gives its port."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--loadmodule", str(module)]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                # Reading the log, not connecting, excludes another program that took the port meanwhile.
                if not any("Ready to accept connections" in line for line in process.stdout):
                    raise RuntimeError(f"the server does not start with {module}")
                # A full pipe without a reader would block the server.
                process.stdout.close()
                yield port
            finally:
                process.kill()


def load(port, seed, seconds, history, *options, late=10_000, stops=None):
    """Runs a load, saves its history, and gives the verdict of the checker of tests/history. The server may be `late` by this
    many milliseconds. With `stops`, a source of random numbers, the clients are suspended repeatedly."""
    command = [HISTORY, "run", "--server", f"127.0.0.1:{port}", "--seed", str(seed), "--seconds", str(seconds)]
    command += ["--calls", "1000000", "--late", str(late), "--out", history, *options]
    return judge(command, seconds + TIMEOUT, stops)


@contextlib.contextmanager
def stopping(process, stops):
    """Suspends and resumes a process repeatedly."""
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
    """Porcupine's verdict on a history of plain locks, or None without Go."""
    if shutil.which("go") is None:
        return None
    return judge([PORCUPINE, "-timeout", "20s", history], None)


def judge(command, timeout, stops=None):
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            with stopping(process, stops) if stops else contextlib.nullcontext():
                output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            return Verdict(False, f"{output}\nno end after {timeout} s")
    return Verdict(process.returncode == 0, output)


def main(loads=4, seconds=15):
    build()
    failed = 0
    first = int(os.environ.get("HISTORY_SEED", time.time()))
    for number in range(loads + 1):
        seed = first + number
        # The last load uses every feature.
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
        passed = passed and grants is not None and int(grants[1]) > MIN_GRANTS * seconds
        failed += not passed
        for verdict in verdicts:
            print(f"seed {seed}: {verdict.last_line() if passed else verdict.output}", flush=True)
    print(f"{loads + 1 - failed} loads are right, {failed} are wrong or undecided")
    return not failed


if __name__ == "__main__":
    sys.exit(0 if main(*map(int, sys.argv[1:])) else 1)
