#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs loads of exclusive locks on the installed redis-server, and has two checkers judge what the clients saw: the one of
tests/history, and Porcupine, which others have written.

    tests/porcupine.py        four loads of 15 s
    tests/porcupine.py 8 30   eight of 30 s

A load that either of them refuses is a failure, and so is one that cannot be decided, or in which little happened.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
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


def load(port, seed, seconds, history, *options):
    """What the checker of tests/history says of a new load, which is written down for other checkers."""
    command = [HISTORY, "run", "--server", f"127.0.0.1:{port}", "--seed", str(seed), "--seconds", str(seconds)]
    return judge([*command, "--calls", "1000000", "--late", "10000", "--out", history, *options], seconds + PATIENCE)


def porcupine(history):
    """What Porcupine says of a history of exclusive locks; nothing if there is no Porcupine."""
    if shutil.which("go") is None:
        return None
    return judge([PORCUPINE, "-timeout", "20s", history], None)


def judge(command, patience):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired as late:
        return Verdict(False, f"{(late.stdout or b'').decode(errors='replace')}\nno end after {patience} s")
    return Verdict(done.returncode == 0, done.stdout)


def main(loads=4, seconds=15):
    build()
    command = [CARGO, "build", "--release", "--lib"]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "CARGO_TARGET_DIR": str(TARGET)})
    failed = 0
    first = int(os.environ.get("HISTORY_SEED", time.time()))
    for seed in range(first, first + loads):
        with tempfile.TemporaryDirectory() as folder:
            history = Path(folder, "history.jsonl")
            with server(TARGET / "release/libredis_lock.so") as port:
                verdicts = [load(port, seed, seconds, history, "--exclusive")]
            if history.exists():
                verdicts.append(porcupine(history))
        verdicts = [verdict for verdict in verdicts if verdict]
        grants = re.search(r", (\d+) grants, ", verdicts[0].last_line())
        passed = all(verdict.passed for verdict in verdicts)
        passed = passed and grants is not None and int(grants[1]) > FEW * seconds
        failed += not passed
        for verdict in verdicts:
            print(f"seed {seed}: {verdict.last_line() if passed else verdict.output}", flush=True)
    print(f"{loads - failed} loads right, {failed} wrong or undecided")
    return not failed


if __name__ == "__main__":
    sys.exit(0 if main(*map(int, sys.argv[1:])) else 1)
