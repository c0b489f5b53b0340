#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests the builds for other systems, and that builds are reproducible.

    tests/scripts/targets.py                all steps
    tests/scripts/targets.py musl arm64     these steps

* musl: builds a server of Debian's sources with musl-gcc, and runs tests of the module on it
* arm64: runs the same tests with Debian's server for arm64 under qemu-user
* reproducible: builds the packages in two folders, which must have the same bytes

The steps need musl-tools, gcc-aarch64-linux-gnu and qemu-user, and the targets of Rust, which `make test-targets` installs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import sanitize

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "targets"

# Tests of replies, waits, sessions and replication. Tests that load a library for glibc into the server cannot run here.
TESTS = ("basics::", "errors::", "handover::", "sessions::", "revoked_grants::")


def built(target):
    command = ["sh", "tools/packaging/build.sh", target]
    folder = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return Path(folder) / "libredis_lock.so"


def run_tests(module, folder):
    """Runs the tests with the program `redis-server` of a folder."""
    version = subprocess.run([folder / "redis-server", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    print(version.strip(), flush=True)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "REDIS_LOCK_MODULE": str(module),
        "REQUIRE_ALL_SERVERS": "1",
    }
    chosen = [f"{word}+::redis_7" for word in TESTS]
    subprocess.run([sys.executable, ROOT / "tests/scripts/run.py", "every", *chosen], env=environment, check=True)


def musl():
    module = built("x86_64-unknown-linux-musl")
    needed = subprocess.run(["readelf", "-d", module], check=True, stdout=subprocess.PIPE, text=True).stdout
    libraries = [line.rpartition("[")[2].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line]
    assert libraries == ["libc.so"], f"the module needs {libraries}, and Alpine Linux has only its own libc in every image"
    folder = TARGET / "musl"
    if not (folder / "redis-server").exists():
        with tempfile.TemporaryDirectory() as temporary:
            sources = sanitize.unpack_sources(Path(temporary))
            # The headers of Linux are not part of musl.
            headers = Path(temporary) / "headers"
            headers.mkdir()
            for name in ("linux", "asm-generic", "x86_64-linux-gnu/asm"):
                (headers / Path(name).name).symlink_to(Path("/usr/include") / name)
            make = ["make", f"-j{os.cpu_count()}", "MALLOC=libc", f"CC=musl-gcc -idirafter {headers}", "redis-server"]
            subprocess.run(make, cwd=sources, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(sources / "src/redis-server", folder)
    run_tests(module, folder)


def arm64():
    module = built("aarch64-unknown-linux-gnu")
    folder = TARGET / "arm64"
    server = folder / "root/usr/bin/redis-check-rdb"
    if not server.exists():
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as temporary:
            unpack_packages("arm64", "redis-tools", Path(temporary), folder / "root")
    # The program's name at the start selects its role.
    script = f'#!/bin/sh\nexec qemu-aarch64 -0 redis-server -L {folder}/root {server} "$@"\n'
    (folder / "redis-server").write_text(script)
    (folder / "redis-server").chmod(0o755)
    run_tests(module, folder)


def unpack_packages(architecture, package, temporary, root):
    """Downloads a package and its libraries for another architecture, and extracts them into a folder."""
    (temporary / "sources.list").write_text("".join(f"{line.replace('deb-src', 'deb', 1)}\n" for line in sanitize.archives()))
    (temporary / "status").touch()
    for name in ("state/lists/partial", "cache/archives/partial"):
        (temporary / name).mkdir(parents=True)
    (temporary / "apt.conf").write_text(
        f'#clear APT::Architectures;\nAPT::Architecture "{architecture}";\nAPT::Architectures {{ "{architecture}"; }};\n'
        f'APT::Install-Recommends "false";\nDir::State "{temporary}/state";\nDir::State::status "{temporary}/status";\n'
        f'Dir::Cache "{temporary}/cache";\nDir::Etc::sourcelist "{temporary}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
        'APT::Sandbox::User "root";\n'
    )
    apt = ["apt-get", "--quiet", "-c", temporary / "apt.conf"]
    subprocess.run([*apt, "update"], stdout=subprocess.DEVNULL, check=True)
    subprocess.run([*apt, "install", "--download-only", "--yes", package], stdout=subprocess.DEVNULL, check=True)
    root.mkdir(parents=True)
    for deb in (temporary / "cache/archives").glob("*.deb"):
        subprocess.run(["dpkg", "-x", deb, root], check=True)


def reproducible():
    sums = []
    for length in (3, 40):
        # The paths have different lengths. A path in the packages would change their sizes.
        with tempfile.TemporaryDirectory(prefix="x" * length) as temporary:
            copy = Path(temporary) / "copy"
            files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
            for name in files.decode().split("\0")[:-1]:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
            epoch = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
            environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch.stdout.strip()}
            environment.pop("CARGO_TARGET_DIR", None)
            subprocess.run(["make", "dist-server"], cwd=copy, env=environment, stdout=subprocess.DEVNULL, check=True)
            sums.append((copy / "target/dist/SHA256SUMS").read_text())
    assert sums[0] == sums[1], f"the second build differs:\n{sums[0]}\n{sums[1]}"
    print(sums[0], end="")


STEPS = {"musl": musl, "arm64": arm64, "reproducible": reproducible}

if __name__ == "__main__":
    for step in sys.argv[1:] or STEPS:
        print(f"== {step}", flush=True)
        STEPS[step]()
