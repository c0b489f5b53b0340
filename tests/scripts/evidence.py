#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the checks that docs/evidence.md describes, in parallel lanes: many checks are idle most of the time.

    tests/scripts/evidence.py                  all steps
    tests/scripts/evidence.py soak mutants     the steps whose names contain one of these words
    LONG=1 tests/scripts/evidence.py           longer steps, and all tests on all servers

The output of each step is in target/evidence/. The last lines show the result and the duration of each step.
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


LONG = os.environ.get("LONG") == "1"

# Steps that use the same sources or the same build share a lane.
LANES = (
    (
        Step("mutants", "python3 tests/mutants/run.py"),
        Step("mutants-in-histories", "python3 tests/mutants/histories.py"),
    ),
    (
        Step(
            "small-worlds",
            f"EXPLORE_STEPS={4_000_000 if LONG else 400_000} cargo test --lib every_short_history_matches -- --nocapture",
        ),
        Step(
            "small-worlds-of-sessions",
            f"EXPLORE_SESSION_STEPS={400_000 if LONG else 40_000} cargo test --lib every_short_history_of -- --nocapture",
        ),
        Step("sanitize", "python3 tests/scripts/sanitize.py"),
        Step("fuzz", f"make fuzz SECONDS={600 if LONG else 120}"),
    ),
    (
        Step("histories", "HISTORY_SECONDS=60 python3 tests/scripts/run.py all histories:: migration_histories:: partitions::"),
        *([Step("ten-million-calls", "python3 tests/scripts/long_histories.py 10000000")] if LONG else []),
        Step(
            "failovers",
            "HISTORY_SECONDS=20 cargo test --test server table_of_overlapping_holds::redis_7 -- --ignored --nocapture",
        ),
        Step("porcupine", f"python3 tests/scripts/porcupine.py {'40 30' if LONG else ''}"),
        Step(
            "protocol",
            "cargo test --release --manifest-path tests/protocol/Cargo.toml"
            " && cargo run --release --manifest-path tests/protocol/Cargo.toml",
        ),
        Step("random-calls", f"WORDS_SECONDS={1800 if LONG else 300} python3 tests/scripts/run.py all random_calls::+redis_7"),
        *([Step("matrix", "make test-matrix")] if LONG else []),
    ),
    (Step("soak", f"make soak SECONDS={3600 if LONG else 900}"),),
)


class Result(NamedTuple):
    step: Step
    passed: bool
    minutes: float
    # Tests that were skipped, or that failed once.
    notes: list

    def line(self):
        return f"{'ok' if self.passed else 'FAILED':6}  {self.minutes:5.1f} min  {self.step.name}: {self.step.command}"


def run(step):
    started = time.monotonic()
    with open(LOGS / f"{step.name}.log", "w") as log:
        # Makes the log readable during the step.
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        command = ["bash", "-c", step.command]
        files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        ended = subprocess.run(command, cwd=tests.ROOT, env=environment, check=False, **files)
    lines = (LOGS / f"{step.name}.log").read_text(errors="replace").splitlines()
    notes = [line for line in lines if line.startswith(("SKIPPED:", "FLAKY:"))]
    # A repeated test meets other random histories, so its first failure counts.
    passed = ended.returncode == 0 and not any(note.startswith("FLAKY:") for note in notes)
    return Result(step, passed, (time.monotonic() - started) / 60, notes)


def main(*words):
    chosen = [[step for step in lane if not words or any(word in step.name for word in words)] for lane in LANES]
    if not any(chosen):
        print("no step matches", file=sys.stderr)
        return False
    LOGS.mkdir(parents=True, exist_ok=True)
    # Building first keeps the lanes from waiting for each other's builds.
    tests.build()
    started = time.monotonic()
    results = []

    def go(lane):
        for step in lane:
            result = run(step)
            results.append(result)
            print(result.line(), *result.notes, sep="\n", flush=True)

    lanes = [threading.Thread(target=go, args=(lane,), daemon=True) for lane in chosen]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    failed = [result for result in results if not result.passed]
    print(f"{len(results) - len(failed)} steps passed, {len(failed)} failed, in {(time.monotonic() - started) / 60:.1f} min")
    for result in failed:
        print(f"--- {LOGS / result.step.name}.log ends with")
        print("\n".join((LOGS / f"{result.step.name}.log").read_text(errors="replace").splitlines()[-20:]))
    return not failed and len(results) == sum(map(len, chosen))


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:]) else 1)
