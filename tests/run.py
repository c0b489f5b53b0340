#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds the tests and runs them, each in a process of its own, so that it is known what each costs.

    tests/run.py build        builds only
    tests/run.py short        what `make test` runs: one Redis, what servers do differently on one Valkey, and each client's language
    tests/run.py long         what else belongs to every change
    tests/run.py weekly       what else `make test-all` runs
    tests/run.py all          the three of them
    tests/run.py rest         all other tests on all other servers
    tests/run.py every        everything
    tests/run.py all fencing  those of them that have the word in their names; fencing+redis_8: both words

Which run a test belongs to follows from its name, see run_of(). The last line says how many passed and failed.
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

# Most tests wait for something most of the time: five at a time leave half of two cores idle.
AT_A_TIME = 4 * (os.cpu_count() or 1)

# As many tests as this may fail on a busy machine and pass when nothing else runs. They are named at the end.
SECOND_CHANCES = 3

# In seconds. No test is as slow as this, not on a busy machine either, but for one that is told how long to go on.
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
    """The names of the lines of servers.rs that belong to a run, in their order."""
    lines = (ROOT / "tests/server/support/servers.rs").read_text().splitlines()
    found = [line.split() for line in lines if re.match(r" *\{ [a-z0-9_]+ .*\}$", line)]
    assert found, "no servers in the list"
    return [words[1] for words in found if words[-2] == run]


# For each run of a server in servers.rs: the runs of the tests in SMOKE files, of other tests, and of tests that start clients.
RUNS_OF_SERVERS = {
    "short": ("short", "short", "short"),
    "second": ("short", "long", "weekly"),
    "long": ("long", "rest", "rest"),
    "weekly": ("weekly", "weekly", "weekly"),
    "matrix": ("weekly", "rest", "rest"),
}
SERVERS = {name: run for run in RUNS_OF_SERVERS for name in servers(run)}

# Files whose tests start clients in other languages, or many of them.
WITH_CLIENTS = ("clients", "examples", "histories", "package_examples", "redisson", "redlock")

# Files whose tests belong to every change on more than one server: those on what differs most between servers. Every bug of
# tests/mutants that a test on a server finds is found on the first server.
SMOKE = (
    "basics", "becoming_free", "cluster", "connections", "describe", "effects", "fields", "guarded_scripts", "loading", "moving",
    "notify", "pauses", "replicas", "several", "waiting",
)  # fmt: skip

# The variant of the programs of docs/clients that belongs to every change. The packages have tests of their own.
RAW_CLIENTS = ("python",)

# Tests that belong to the weekly run although their server does not: an old client, and the second library of a package.
WEEKLY = ("redisson_3_17_7", "long_node_redis", "long_java_jedis")

# Files with the slowest tests. These begin first, so that none of them is left alone at the end.
SLOW = ("core", "failovers", "clients", "examples", "histories", "soak", "outages", "packages", "redlock")

# What each run consists of, by its name.
RUNS = {
    "short": ("short",),
    "long": ("long",),
    "weekly": ("weekly",),
    "rest": ("rest",),
    "all": ("short", "long", "weekly"),
    "every": ("short", "long", "weekly", "rest"),
}


def run_of(name):
    """The run that a test belongs to: that of its server, unless the name says that it takes long."""
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
    """The executables with tests in them. The examples and the tools are built along."""
    # Most of its time is that of a linker with one thread.
    with subprocess.Popen([CARGO, "build", "--release", "--quiet"], cwd=ROOT) as module:
        executables = build_tests()
    if module.returncode:
        sys.exit(module.returncode)
    return executables


def build_tests():
    # With the examples along the same features are chosen as for the tests, so nothing is built twice.
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
    # What is ignored makes a table, and is run by hand.
    ignored = set(listed(binary, "--ignored"))
    return [Test(binary, name) for name in listed(binary) if name not in ignored]


def kill_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class Runner:
    def __init__(self):
        # What each test would otherwise look after by itself.
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
                # It may have left servers behind.
                kill_group(process.pid)
            output.seek(0)
            text = output.read().decode(errors="replace")
        # Not one test, if it is called by a name that is not there.
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
    """Runs the few tests that failed once more, one after the other: what is broken is broken then, too."""
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
