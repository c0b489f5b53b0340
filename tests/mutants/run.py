#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts bugs into the module that locks elsewhere have had, one after the other, and looks whether the tests find them.

    tests/mutants/run.py               all of them
    tests/mutants/run.py token lease   those that have one of the words in their names
    tests/mutants/run.py --show token  the same, and how each test fails
    tests/mutants/run.py --check       builds nothing: looks whether every patch still fits, and names tests that there are

Each file NAME.patch beside this one is a bug. Before the diff it says what goes wrong, where such a bug is seen, and which tests
must fail because of it:

    Bug: one sentence
    Seen: one sentence
    Caught by: lib:core::scenarios::retry server:fencing::tokens_grow::redis_7

What begins with `lib:` is a test inside the module, what begins with `server:` is one of tests/server, each with its whole name.
It counts as caught only if all of them fail, and none of them may fail without the patch. What does not compile is no bug.
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
# The sources that are changed are a copy: nobody's work is touched, and what is built of them is kept apart.
TREE = TARGET / "mutants/tree"
BUILD = TARGET / "mutants/build"
CARGO = os.environ.get("CARGO", "cargo")

# In seconds. The slowest of the named tests takes a tenth of that without a bug.
PATIENCE = 120

ENVIRONMENT = {
    **os.environ,
    "CARGO_TARGET_DIR": str(BUILD),
    # A module that is built fast is as good as a fast one here.
    "CARGO_INCREMENTAL": "1",
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_DEBUG": "false",
    "REDIS_LOCK_MODULE": str(BUILD / "release/libredis_lock.so"),
    "REDIS_LOCK_EXAMPLES": str(BUILD / "debug"),
    "REDIS_LOCK_TOOLS": str(BUILD / "debug"),
    # That a history fails is enough: it need not be the shortest one.
    "PROPTEST_MAX_SHRINK_ITERS": "0",
    # Otherwise git takes the copy for a folder of the repository around it, and skips what a patch says.
    "GIT_CEILING_DIRECTORIES": str(TREE.parent),
}


class Mutant(NamedTuple):
    name: str
    patch: Path
    headers: dict
    tests: list


class Trouble(Exception):
    """Something that is no finding: a patch that does not fit or compile, or a test that fails by itself."""


def mutants():
    found = []
    for patch in sorted(PATCHES.glob("*.patch")):
        head = patch.read_text().partition("\ndiff --git ")[0]
        headers = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
        found.append(Mutant(patch.stem, patch, headers, headers.get("Caught by", "").split()))
    return found


def check(mutant):
    """What is wrong with a patch, as far as that can be seen without building anything."""
    missing = [header for header in ("Bug", "Seen", "Caught by") if not mutant.headers.get(header)]
    if missing:
        yield f"does not say: {', '.join(missing)}"
    applied = subprocess.run(
        ["git", "apply", "--check", str(mutant.patch)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    if applied.returncode:
        yield applied.stderr.strip()
    yield from (f"names a test that there is not: {test}" for test in mutant.tests if not exists(test))


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
    # Some are made by macros, which get the name only.
    return any(file.is_file() and re.search(rf"\b{name}\b", file.read_text()) for file in files)


def copy_sources():
    """Makes the copy what the sources are. What is the same stays untouched, so that little is built."""
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
    # Where the tests look for other servers.
    with contextlib.suppress(FileExistsError):
        (TREE / "target").symlink_to(TARGET)


def restore(path):
    """A file of the copy, as it is in the sources. It is newer than what was built of another one."""
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
            raise Trouble(f"the patch does not fit\n{done.stderr}")
        yield
    finally:
        for path in re.findall(r"^\+\+\+ b/(.*)$", mutant.patch.read_text(), re.MULTILINE):
            restore(path)
        # What found one bug is not to help with the next.
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
    """What these tests need of the module. Returns the executable with the tests inside it."""
    if any(test.startswith("server:") for test in tests):
        cargo("build", "--release", "--lib")
    if any(test.startswith("lib:") for test in tests):
        return cargo("test", "--lib", "--no-run")[0]
    return None


def run(test, binary):
    """Whether a test fails: how, or nothing if it passes."""
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
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # It may have left servers behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if "running 1 test\n" not in text:
        raise Trouble(f"there is no test {test}\n{text}")
    if "SKIPPED: " in text:
        raise Trouble(f"{test} is left out here\n{text}")
    if status is None:
        return f"it takes longer than {PATIENCE} s\n{text}"
    return f"it fails\n{text}" if status else None


def first_line(text):
    return text.partition("\n")[0]


def try_out(mutant, server_tests, shown):
    """What to say of a mutant, and whether it was caught."""
    started = time.monotonic()
    with applied(mutant):
        lib_tests = build(mutant.tests)
        results = [(test, run(test, lib_tests if test.startswith("lib:") else server_tests)) for test in mutant.tests]
    if shown:
        for test, why in results:
            print(f"---- {mutant.name}, {test}: {why or 'it passes'}")
    survived = [test for test, why in results if why is None]
    if survived:
        return f"SURVIVED {mutant.name}, which is not seen by {' '.join(survived)}", False
    slow = " (time over)" if any("takes longer" in first_line(why) for _, why in results) else ""
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
            raise Trouble(f"{test} does not pass without any bug: {why}")
    print(f"{len(named)} tests pass without a bug, after {time.monotonic() - started:.0f} s", flush=True)
    caught = 0
    for mutant in chosen:
        try:
            says, is_caught = try_out(mutant, server_tests, shown)
        except Trouble as trouble:
            says, is_caught = f"SURVIVED {mutant.name}, which is no bug to be found: {trouble}", False
        print(says, flush=True)
        caught += is_caught
    print(f"{caught} caught, {len(chosen) - caught} survived")
    return caught == len(chosen)


def main(*words):
    everything = mutants()
    if words == ("--check",):
        wrong = [f"{mutant.patch.name}: {what}" for mutant in everything for what in check(mutant)]
        print("\n".join(wrong) or f"{len(everything)} mutants fit")
        return not wrong
    shown = "--show" in words
    words = [word for word in words if word != "--show"]
    chosen = [mutant for mutant in everything if not words or any(word in mutant.name for word in words)]
    if not chosen:
        sys.exit("no such mutants")
    try:
        return try_all(chosen, shown)
    except Trouble as trouble:
        sys.exit(str(trouble))


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:]) else 1)
