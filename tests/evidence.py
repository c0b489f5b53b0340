#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the steps of docs/evidence.md, in three lanes at the same time, as many steps mostly wait.

    tests/evidence.py                  runs all steps
    tests/evidence.py soak mutants     runs the steps with one of these words in their names

The output of each step is in target/evidence/. The last lines have the result and the time of each step.
"""

import os
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import run as tests

LOGS = tests.TARGET / "evidence"


class Step(NamedTuple):
    name: str
    command: str


# Steps that use the same sources or the same build are in one lane.
LANES = (
    (
        Step("mutants", "python3 tests/mutants/run.py"),
        Step("mutants-in-histories", "python3 tests/mutants/histories.py"),
    ),
    (
        Step("small-worlds", "EXPLORE_STEPS=400000 cargo test --lib every_short -- --nocapture"),
        Step("sanitize", "python3 tests/sanitize.py"),
        Step("fuzz", "make fuzz SECONDS=120"),
    ),
    (
        Step("histories", "HISTORY_SECONDS=60 python3 tests/run.py all histories:: migrations:: partitions::"),
        Step("failovers", "HISTORY_SECONDS=20 cargo test --test server how_often_two_hold::redis_7 -- --ignored --nocapture"),
        Step("porcupine", "python3 tests/porcupine.py"),
        Step("soak", "make soak"),
        Step("words", "WORDS_SECONDS=300 python3 tests/run.py all words::+redis_7"),
    ),
)


class Result(NamedTuple):
    step: Step
    passed: bool
    minutes: float

    def line(self):
        return f"{'ok' if self.passed else 'FAILED':6}  {self.minutes:5.1f} min  {self.step.name}: {self.step.command}"


def run(step):
    began = time.monotonic()
    with open(LOGS / f"{step.name}.log", "w") as log:
        # Lets a reader see the results so far.
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        command = ["bash", "-c", step.command]
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        ended = subprocess.run(command, cwd=tests.ROOT, env=environment, check=False, **streams)
    return Result(step, ended.returncode == 0, (time.monotonic() - began) / 60)


def main(*words):
    chosen = [[step for step in lane if not words or any(word in step.name for word in words)] for lane in LANES]
    if not any(chosen):
        print("no such step", file=sys.stderr)
        return False
    LOGS.mkdir(parents=True, exist_ok=True)
    # Builds first, so that no lane waits for the build of another one.
    tests.build()
    began = time.monotonic()
    results = []

    def go(lane):
        for step in lane:
            result = run(step)
            results.append(result)
            print(result.line(), flush=True)

    lanes = [threading.Thread(target=go, args=(lane,), daemon=True) for lane in chosen]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    failed = [result for result in results if not result.passed]
    print(f"{len(results) - len(failed)} steps passed, {len(failed)} failed, in {(time.monotonic() - began) / 60:.1f} min")
    for result in failed:
        print(f"--- {LOGS / result.step.name}.log ends with")
        print("\n".join((LOGS / f"{result.step.name}.log").read_text(errors="replace").splitlines()[-20:]))
    return not failed


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:]) else 1)
