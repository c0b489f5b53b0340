#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds the tests and runs each in its own process, which shows what each one costs: tests/scripts/run.py RUN [WORD...]

RUN is one of these:

* build: builds only
* short: `make test`: all tests on one Redis, server differences on one Valkey, a client per language
* long: the other tests for every change
* weekly: the other tests of `make test-all`
* all: short, long and weekly
* rest: all other tests on all other servers
* every: all tests

WORD selects the tests with this word in their names; fencing+redis_8 requires both words.

The name of a test determines its run, see run_of(). Failed tests are repeated alone, see retry(). The last line has the numbers
of passed and failed tests.
"""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
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

# Most tests are idle most of the time: five concurrent tests use half of two cores.
CONCURRENT = 4 * (os.cpu_count() or 1)

# Names of tests that may fail once, each with its reason.
RETRIED = ROOT / "tests/retried.txt"

# A failed test that is not listed there must pass this many times alone, and at most MAX_FLAKY tests of a run may do so. Such a
# test is a defect: fix it, or list it with its reason.
REPEATS = 3
MAX_FLAKY = 2

# In seconds. The slowest test takes less, even on a busy machine, except for tests with a duration of their own.
TIMEOUT = 900 + sum(int(os.environ.get(duration, "0")) for duration in ("SOAK_SECONDS", "WORDS_SECONDS"))


class Test(NamedTuple):
    binary: str
    name: str


class Result(NamedTuple):
    test: Test
    passed: bool
    seconds: float
    cpu: float
    output: str

    def line(self):
        return f"{self.seconds:6.1f} s {self.cpu:6.1f} s  {self.test.name}"


def server_list():
    """The words about each server in list.rs: name, variant, kind, program, package, necessity and run."""
    lines = (ROOT / "tests/kit/src/server/list.rs").read_text().splitlines()
    found = [line.replace('"', "").split()[1:-1] for line in lines if re.match(r" *\{ [a-z0-9_]+ .*\}$", line)]
    assert found, "no servers in the list"
    return found


def servers(run):
    """The names of the servers in list.rs that belong to a run, in their order."""
    return [words[0] for words in server_list() if words[-1] == run]


# Maps a server's run in list.rs to the runs of SMOKE files, of other tests, and of tests that start clients.
RUNS_OF_SERVERS = {
    "short": ("short", "short", "short"),
    "second": ("short", "long", "weekly"),
    "long": ("long", "rest", "rest"),
    "weekly": ("weekly", "weekly", "weekly"),
    "matrix": ("weekly", "rest", "rest"),
}
SERVERS = {name: run for run in RUNS_OF_SERVERS for name in servers(run)}

# Files whose tests start many clients, or clients in other languages.
WITH_CLIENTS = ("clients", "examples", "histories", "package_examples", "redisson", "redlock")

# Files with tests of the largest differences between servers: every change runs them on more than one server. The first
# server finds every bug of tests/mutants that a server test finds.
SMOKE = (
    "basics", "cluster", "command_docs", "connections", "effects", "foreign_fields", "guarded_scripts", "handover", "loading",
    "multiple_locks", "pauses", "replicas", "sessions", "slot_migrations", "waiting",
)  # fmt: skip

# Only this variant of the programs of docs/clients is tested for every change. The packages have tests of their own.
RAW_CLIENTS = ("python",)

# Tests that only the weekly run makes, on servers of the earlier runs: an old client, a package's second library.
WEEKLY = ("redisson_3_17_7", "long_node_redis", "long_java_jedis")

# Files with the slowest tests. They start first: a slow test that started last would run alone at the end.
SLOW = ("core", "failovers", "clients", "examples", "histories", "soak", "outages", "packages", "redlock")

# The parts of each run.
RUNS = {
    "short": ("short",),
    "long": ("long",),
    "weekly": ("weekly",),
    "rest": ("rest",),
    "all": ("short", "long", "weekly"),
    "every": ("short", "long", "weekly", "rest"),
}


def run_of(name):
    """The run of a test: its server's, unless the name marks a long or weekly test."""
    file, *modules = name.split("::")
    last = modules[-1] if modules else file
    is_raw_client = file == "clients" and last in SERVERS
    if last in WEEKLY or (is_raw_client and modules[0] not in RAW_CLIENTS):
        of_server = run_of_server(file, last)
        return of_server if of_server == "rest" else "weekly"
    if last.startswith("weekly_"):
        return "weekly"
    if last.startswith(("redisson_", "long_")):
        return "long"
    return run_of_server(file, last)


def run_of_server(file, server):
    smoke, other, with_clients = RUNS_OF_SERVERS[SERVERS.get(server, "short")]
    return smoke if file in SMOKE else with_clients if file in WITH_CLIENTS else other


def build():
    """Builds the tests, the examples and the tools. Returns the executables with tests."""
    # A linker with one thread takes most of this time, so other builds run beside it.
    with subprocess.Popen([CARGO, "build", "--release", "--quiet"], cwd=ROOT) as module:
        executables = build_tests()
    if module.returncode:
        sys.exit(module.returncode)
    return executables


def build_tests():
    # One command for all, so the compiler is never idle. The examples select the features of the tests: nothing is built twice.
    subprocess.run([CARGO, "build", "--workspace", "--bins", "--examples", "--tests"], cwd=ROOT, check=True)
    command = [CARGO, "test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    built = [message for message in messages if message["reason"] == "compiler-artifact"]
    return [message["executable"] for message in built if message["profile"]["test"] and message["executable"]]


def listed(binary, *which):
    command = [binary, "--list", "--format", "terse", *which]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line.removesuffix(": test") for line in output.splitlines() if line.endswith(": test")]


def tests_in(binary):
    # Ignored tests print tables, and run by hand.
    ignored = set(listed(binary, "--ignored"))
    return [Test(binary, name) for name in listed(binary) if name not in ignored]


def kill_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class Runner:
    def __init__(self):
        # Without these, each test would build the programs itself.
        self.environment = {
            "REDIS_LOCK_MODULE": str(TARGET / "release/libredis_lock.so"),
            "REDIS_LOCK_EXAMPLES": str(TARGET / "debug"),
            "REDIS_LOCK_TOOLS": str(TARGET / "debug"),
            **os.environ,
        }
        self.lock = threading.Lock()
        self.running = set()
        self.stopped = False

    def run(self, test):
        with tempfile.TemporaryFile() as output:
            with self.lock:
                if self.stopped:
                    return None
                started = time.monotonic()
                process = subprocess.Popen(
                    [test.binary, "--exact", test.name, "--nocapture"],
                    cwd=ROOT,
                    env={**self.environment, "TEST_NAME": test.name},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self.running.add(process.pid)
            killer = threading.Timer(TIMEOUT, kill_group, [process.pid])
            killer.start()
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - started
            killer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            with self.lock:
                self.running.discard(process.pid)
            if process.returncode:
                # A failed test can leave servers running.
                kill_group(process.pid)
            output.seek(0)
            text = output.read().decode(errors="replace")
        # An unknown test name runs zero tests, which also exits with status 0.
        passed = status == 0 and "test result: ok. 1 passed;" in text
        result = Result(test, passed, seconds, usage.ru_utime + usage.ru_stime, text)
        print("ok    " if passed else "FAILED", result.line(), flush=True)
        return result

    def stop(self):
        with self.lock:
            self.stopped = True
            for pid in self.running:
                kill_group(pid)


def run_all(tests):
    runner = Runner()
    with concurrent.futures.ThreadPoolExecutor(CONCURRENT) as pool:
        try:
            return list(pool.map(runner.run, tests))
        except KeyboardInterrupt:
            runner.stop()
            raise


def retried():
    """The names in tests/retried.txt. A test's name there has no server."""
    lines = [line for line in RETRIED.read_text().splitlines() if line and not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"\S+  \S.*", line), f"{RETRIED}: expected a name, two spaces and a reason: {line}"
    return {line.split("  ")[0] for line in lines}


def retry(results, names):
    """Repeats failed tests, each alone. Returns the final results, and the failures of tests that passed.

    A listed test must pass once, an unlisted one REPEATS times in a row. More than MAX_FLAKY unlisted failures all count.
    """
    failed = [result for result in results if not result.passed]
    unlisted = [result for result in failed if result.test.name.rpartition("::")[0] not in names]
    if len(unlisted) > MAX_FLAKY:
        failed = [result for result in failed if result not in unlisted]
    if failed:
        print("Again, alone:")
    passed_again = []
    for result in failed:
        times = REPEATS if result in unlisted else 1
        if all(Runner().run(result.test).passed for _ in range(times)):
            passed_again.append(result)
    return [result._replace(passed=result.passed or result in passed_again) for result in results], passed_again


def report(results, passed_again, others, left):
    for result in passed_again:
        print(f"\n---- {result.test.name}, which passed alone afterwards\n{result.output}")
    for result in results:
        if not result.passed:
            print(f"\n---- {result.test.name}\n{result.output}")
    skipped = {line for result in results for line in result.output.splitlines() if line.startswith("SKIPPED: ")}
    print("", *sorted(skipped), sep="\n")
    print("The ten slowest tests, with elapsed time and processor time:")
    for result in sorted(results, key=lambda result: result.seconds, reverse=True)[:10]:
        print(result.line())
    cpu = sum(result.cpu for result in results)
    print(f"All tests took {cpu / 60:.1f} minutes of processor time.")
    for result in results:
        if not result.passed:
            print(f"FAILED: {result.test.name}")
    for result in passed_again:
        print(f"FLAKY: {result.test.name} failed, and passed alone")
    passed = sum(result.passed for result in results)
    if others:
        print(f"{others} tests for every change belong to the other run.")
    if left:
        print(f"{left} tests run only in make test-all and make test-matrix.")
    print(f"{passed} passed, {len(results) - passed} failed", flush=True)
    return passed == len(results)


def has_all(name, words):
    return all(word in name for word in words)


def main(run, *words):
    everything = [test for binary in build() for test in tests_in(binary)]
    runs = [(test, run_of(test.name)) for test in everything]
    wanted = [test for test, of in runs if of in RUNS[run]]
    chosen = [test for test in wanted if not words or any(has_all(test.name, word.split("+")) for word in words)]
    if not chosen:
        sys.exit("no test matches")
    chosen.sort(key=lambda test: test.name.split("::", 1)[0] not in SLOW)
    of_every_change = ("short", "long")
    others = sum(of not in RUNS[run] and of in of_every_change for _, of in runs)
    left = sum(of not in RUNS[run] and of not in of_every_change for _, of in runs)
    return report(*retry(run_all(chosen), retried()), others, left)


if __name__ == "__main__":
    if sys.argv[1:] == ["build"]:
        build()
        sys.exit()
    if len(sys.argv) < 2 or sys.argv[1] not in RUNS:
        sys.exit(__doc__)
    sys.exit(0 if main(*sys.argv[1:]) else 1)
