#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adds one bug at a time to the module, and checks that the tests find it. Other lock implementations have had these bugs.

* tests/mutants/run.py: all bugs
* tests/mutants/run.py token lease: the bugs with one of these words in their names
* tests/mutants/run.py --show token: prints also how each test fails
* tests/mutants/run.py --check: builds nothing; checks that every patch applies and names existing tests

Each NAME.patch in this folder is a bug. Its header describes the bug, another lock that had it, and the tests that must fail:

    Bug: one sentence
    Seen: one sentence
    Caught by: lib:core::scenarios::retry server:fencing::tokens_grow::redis_7

`lib:` marks a test inside the module, `server:` a test in tests/server; both need the full name. A bug is caught only if all its
tests fail, and all pass without the patch. A patch that does not compile is no bug.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
PATCHES = ROOT / "tests/mutants"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Patches change a copy of the sources, which has its own build folder.
TREE = TARGET / "mutants/tree"
BUILD = TARGET / "mutants/build"
CARGO = os.environ.get("CARGO", "cargo")

# In seconds. Without a bug, the slowest of the named tests needs ten seconds of processor time.
TIMEOUT = 120

ENVIRONMENT = {
    **os.environ,
    "CARGO_TARGET_DIR": str(BUILD),
    # Optimizes for a fast build, as the speed of the module does not matter here.
    "CARGO_INCREMENTAL": "1",
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_DEBUG": "false",
    "REDIS_LOCK_MODULE": str(BUILD / "release/libredis_lock.so"),
    "REDIS_LOCK_EXAMPLES": str(BUILD / "debug"),
    "REDIS_LOCK_TOOLS": str(BUILD / "debug"),
    # Any failing history is enough. Searching for the shortest one would take time.
    "PROPTEST_MAX_SHRINK_ITERS": "0",
    # Otherwise git takes the copy for a folder of the outer repository, and ignores the patch.
    "GIT_CEILING_DIRECTORIES": str(TREE.parent),
}


class Mutant(NamedTuple):
    name: str
    patch: Path
    headers: dict
    tests: list


class Trouble(Exception):
    """A bug could not be tried: a patch does not apply or compile, or a test fails without it."""


def mutants():
    found = []
    for patch in sorted(PATCHES.glob("*.patch")):
        head = patch.read_text().partition("\ndiff --git ")[0]
        headers = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
        found.append(Mutant(patch.stem, patch, headers, headers.get("Caught by", "").split()))
    return found


def check(mutant):
    """The errors in a patch that are visible without a build."""
    missing = [header for header in ("Bug", "Seen", "Caught by") if not mutant.headers.get(header)]
    if missing:
        yield f"lacks: {', '.join(missing)}"
    applied = subprocess.run(
        ["git", "apply", "--check", str(mutant.patch)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    if applied.returncode:
        yield applied.stderr.strip()
    yield from (f"names a missing test: {test}" for test in mutant.tests if not exists(test))


def exists(test):
    kind, _, path = test.partition(":")
    parts = path.split("::")
    if kind == "server":
        servers = (ROOT / "tests/kit/src/server/list.rs").read_text()
        if not re.search(rf"\{{ {parts.pop()} ", servers):
            return False
        folder = ROOT / "tests/server"
    elif kind == "lib":
        folder = ROOT / "src"
    else:
        return False
    *modules, name = parts
    if modules[-1:] == ["tests"]:
        modules.pop()
    files = [folder.joinpath(*modules).with_suffix(".rs"), folder.joinpath(*modules, "mod.rs")]
    # A macro may define the test, so only its name is in the file.
    return any(file.is_file() and re.search(rf"\b{name}\b", file.read_text()) for file in files)


def copy_sources():
    """Updates the copy of the sources. Unchanged files stay untouched, so cargo builds little."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    wanted = {Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name}
    wanted = {path for path in wanted if (ROOT / path).is_file()}
    TREE.mkdir(parents=True, exist_ok=True)
    there = {
        Path(folder, name).relative_to(TREE)
        for folder, _, names in os.walk(TREE)
        for name in names
        if not Path(folder, name).is_symlink()
    }
    for path in there - wanted:
        (TREE / path).unlink()
    for path in sorted(wanted):
        restore(path)
    # The tests find other servers there.
    with contextlib.suppress(FileExistsError):
        (TREE / "target").symlink_to(TARGET)


def restore(path):
    """Restores a file of the copy from the sources. Its new time makes cargo build it again."""
    source, copy = ROOT / path, TREE / path
    content = source.read_bytes()
    if not copy.is_file() or copy.read_bytes() != content:
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        shutil.copymode(source, copy)


@contextlib.contextmanager
def applied(mutant):
    done = subprocess.run(
        ["git", "apply", str(mutant.patch)], cwd=TREE, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    try:
        if done.returncode:
            raise Trouble(f"the patch does not apply\n{done.stderr}")
        yield
    finally:
        for path in re.findall(r"^\+\+\+ b/(.*)$", mutant.patch.read_text(), re.MULTILINE):
            restore(path)
        # Histories that found one bug must not help with the next.
        shutil.rmtree(TREE / "proptest-regressions", ignore_errors=True)


def cargo(*words):
    done = subprocess.run(
        [CARGO, *words, "--message-format=json-render-diagnostics"],
        cwd=TREE,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise Trouble(f"it does not compile\n{done.stderr}")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    built = [message for message in messages if message["reason"] == "compiler-artifact"]
    return [message["executable"] for message in built if message["profile"]["test"] and message["executable"]]


def build(tests):
    """Builds the module for these tests. Returns the executable with the module's own tests."""
    if any(test.startswith("server:") for test in tests):
        cargo("build", "--release", "--lib")
    if any(test.startswith("lib:") for test in tests):
        return cargo("test", "--lib", "--no-run")[0]
    return None


def run(test, binary):
    """Runs a test. Returns how it fails, or None if it passes."""
    name = test.partition(":")[2]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [binary, "--exact", name, "--nocapture"],
            cwd=TREE,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # A failed test can leave servers running.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if "running 1 test\n" not in text:
        raise Trouble(f"there is no test {test}\n{text}")
    if "SKIPPED: " in text:
        raise Trouble(f"{test} is skipped on this machine\n{text}")
    if status is None:
        return f"it takes longer than {TIMEOUT} s\n{text}"
    return f"it fails\n{text}" if status else None


def first_line(text):
    return text.partition("\n")[0]


def try_out(mutant, server_tests, shown):
    """Runs the tests of a mutant. Returns a line for the report, and whether it was caught."""
    started = time.monotonic()
    with applied(mutant):
        lib_tests = build(mutant.tests)
        results = [(test, run(test, lib_tests if test.startswith("lib:") else server_tests)) for test in mutant.tests]
    if shown:
        for test, why in results:
            print(f"---- {mutant.name}, {test}: {why or 'it passes'}")
    survived = [test for test, why in results if why is None]
    if survived:
        return f"SURVIVED {mutant.name}, not caught by {' '.join(survived)}", False
    slow = " (timeout)" if any("takes longer" in first_line(why) for _, why in results) else ""
    tests = " ".join(mutant.tests)
    return f"caught {mutant.name} by {tests}{slow} in {time.monotonic() - started:.0f} s", True


def try_all(chosen, shown):
    started = time.monotonic()
    copy_sources()
    named = sorted({test for mutant in chosen for test in mutant.tests})
    lib_tests = build(named)
    server_tests = cargo("test", "--test", "server", "--no-run")[0] if "server:" in " ".join(named) else None
    for test in named:
        why = run(test, lib_tests if test.startswith("lib:") else server_tests)
        if why:
            raise Trouble(f"{test} fails without any bug: {why}")
    print(f"{len(named)} tests pass without a bug, after {time.monotonic() - started:.0f} s", flush=True)
    caught = 0
    for mutant in chosen:
        try:
            line, is_caught = try_out(mutant, server_tests, shown)
        except Trouble as trouble:
            line, is_caught = f"SURVIVED {mutant.name}, which could not be tried: {trouble}", False
        print(line, flush=True)
        caught += is_caught
    print(f"{caught} caught, {len(chosen) - caught} survived")
    return caught == len(chosen)


def main(*words):
    everything = mutants()
    if words == ("--check",):
        wrong = [f"{mutant.patch.name}: {what}" for mutant in everything for what in check(mutant)]
        print("\n".join(wrong) or f"{len(everything)} mutants are right")
        return not wrong
    shown = "--show" in words
    words = [word for word in words if word != "--show"]
    chosen = [mutant for mutant in everything if not words or any(word in mutant.name for word in words)]
    if not chosen:
        sys.exit("no mutant matches")
    try:
        return try_all(chosen, shown)
    except Trouble as trouble:
        sys.exit(str(trouble))


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:]) else 1)
