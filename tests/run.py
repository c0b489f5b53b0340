#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds and runs the tests, each in a process of its own, which shows the time of each test.

    tests/run.py build        builds

Each of these runs tests:

    tests/run.py short        those of `make test`
    tests/run.py long         the others of every change
    tests/run.py weekly       the others of `make test-all`

    tests/run.py all          short, long and weekly
    tests/run.py rest         the others, on all other servers
    tests/run.py every        all and rest

    tests/run.py all fencing  with this word in their names
    tests/run.py all a+b      with both words in their names

The name of a test decides its run, see run_of(). The last line has the numbers of passed and failed tests.
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

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
CARGO = os.environ.get("CARGO", "cargo")

# Most tests mostly wait. Five tests at a time would leave half of two cores idle.
AT_A_TIME = 4 * (os.cpu_count() or 1)

# This many tests may fail on a busy machine and pass alone. The report names them.
SECOND_CHANCES = 3

# The time limit of a test in seconds. Only the soak test comes close, as its duration is an argument.
PATIENCE = 900 + int(os.environ.get("SOAK_SECONDS", "0"))


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


def servers(run):
    """Returns the names of the servers of a run, in the order of list.rs."""
    lines = (ROOT / "tests/kit/src/server/list.rs").read_text().splitlines()
    found = [line.split() for line in lines if re.match(r" *\{ [a-z0-9_]+ .*\}$", line)]
    assert found, "no servers in the list"
    return [words[1] for words in found if words[-2] == run]


# Maps the run of a server in list.rs to the runs of its tests: tests in SMOKE files, other tests, and tests that start clients.
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

# Files whose tests run on more than one server for every change, because servers differ most there. The tests on the first server
# find every bug of tests/mutants that server tests can find.
SMOKE = (
    "basics", "becoming_free", "cluster", "connections", "describe", "effects", "fields", "guarded_scripts", "loading", "moving",
    "notify", "pauses", "replicas", "several", "waiting",
)  # fmt: skip

# The programs of docs/clients that are tested for every change. The other languages have packages with tests of their own.
RAW_CLIENTS = ("python", "rust")

# Tests of the weekly run on a server of another run: those of an old client, and of the second library of a package.
WEEKLY = ("redisson_3_17_7", "long_node_redis", "long_java_jedis")

# Files with the slowest tests. They begin first, so that none of them runs alone at the end.
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
    """Returns the run of a test: that of its server, unless the name marks a long test."""
    file, *modules = name.split("::")
    last = modules[-1] if modules else file
    is_raw_client = file == "clients" and last in SERVERS
    if last in WEEKLY or (is_raw_client and modules[0] not in RAW_CLIENTS):
        of_server = run_of_server(file, last)
        return of_server if of_server == "rest" else "weekly"
    if last.startswith(("redisson_", "long_")):
        return "long"
    return run_of_server(file, last)


def run_of_server(file, server):
    smoke, other, with_clients = RUNS_OF_SERVERS[SERVERS.get(server, "short")]
    return smoke if file in SMOKE else with_clients if file in WITH_CLIENTS else other


def build():
    """Builds everything, and returns the executables with tests."""
    # Most of this build is a linker with one thread, so the other builds run beside it.
    with subprocess.Popen([CARGO, "build", "--release", "--quiet"], cwd=ROOT) as module:
        executables = build_tests()
    if module.returncode:
        sys.exit(module.returncode)
    return executables


def build_tests():
    # Together with the examples, cargo selects the same features as for the tests, so nothing is built twice.
    subprocess.run([CARGO, "build", "--workspace", "--bins", "--examples"], cwd=ROOT, check=True)
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
    # Ignored tests make tables, and are run by hand.
    ignored = set(listed(binary, "--ignored"))
    return [Test(binary, name) for name in listed(binary) if name not in ignored]


def kill_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class Runner:
    def __init__(self):
        # Otherwise each test would build these.
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
            killer = threading.Timer(PATIENCE, kill_group, [process.pid])
            killer.start()
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - started
            killer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            with self.lock:
                self.running.discard(process.pid)
            if process.returncode:
                # The failed test may have left servers behind.
                kill_group(process.pid)
            output.seek(0)
            text = output.read().decode(errors="replace")
        # Without a test of this name, the executable succeeds too.
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
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        try:
            return list(pool.map(runner.run, tests))
        except KeyboardInterrupt:
            runner.stop()
            raise


def again_alone(results):
    """Runs a few failed tests again, one at a time. A real defect fails again."""
    failed = [result for result in results if not result.passed]
    if not 0 < len(failed) <= SECOND_CHANCES:
        return results, []
    print("Once more, alone:")
    second = {result.test: Runner().run(result.test) for result in failed}
    only_alone = [result for result in failed if second[result.test].passed]
    return [second.get(result.test, result) for result in results], only_alone


def report(results, only_alone, others, left):
    for result in only_alone:
        print(f"\n---- {result.test.name}, which passed when it was alone\n{result.output}")
    for result in results:
        if not result.passed:
            print(f"\n---- {result.test.name}\n{result.output}")
    skipped = {line for result in results for line in result.output.splitlines() if line.startswith("SKIPPED: ")}
    print("", *sorted(skipped), sep="\n")
    print("The ten slowest, and what processor time they took:")
    for result in sorted(results, key=lambda result: result.seconds, reverse=True)[:10]:
        print(result.line())
    cpu = sum(result.cpu for result in results)
    print(f"All together took {cpu / 60:.1f} minutes of processor time.")
    for result in results:
        if not result.passed:
            print(f"FAILED: {result.test.name}")
    for result in only_alone:
        print(f"PASSED ONLY ALONE: {result.test.name}")
    passed = sum(result.passed for result in results)
    if others:
        print(f"{others} tests belong to the other run.")
    if left:
        print(f"{left} tests are left to make test-all and make test-matrix.")
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
        sys.exit("no such tests")
    chosen.sort(key=lambda test: test.name.split("::", 1)[0] not in SLOW)
    of_every_change = ("short", "long")
    others = sum(of not in RUNS[run] and of in of_every_change for _, of in runs)
    left = sum(of not in RUNS[run] and of not in of_every_change for _, of in runs)
    return report(*again_alone(run_all(chosen)), others, left)


if __name__ == "__main__":
    if sys.argv[1:] == ["build"]:
        build()
        sys.exit()
    if len(sys.argv) < 2 or sys.argv[1] not in RUNS:
        sys.exit(__doc__)
    sys.exit(0 if main(*sys.argv[1:]) else 1)
