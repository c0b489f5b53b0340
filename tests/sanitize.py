#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the tests of one server with AddressSanitizer and LeakSanitizer in the module, and below the server.

    tests/sanitize.py             all tests on the installed redis-server
    tests/sanitize.py fencing     those of them that have the word in their names

The module is built by Rust's nightly toolchain, and the server from Debian's sources of the installed version, with every load and
store checked. Where these sources cannot be had, the server is the installed one. It takes its memory from malloc, as the module
does, and so both have theirs from the sanitizer, which is loaded before them. Each server is shut down at the end of its test,
not killed, and is looked through for leaks then. First of all it is seen that defects are found.
With WHOLE_STACKS=1 in the environment a report of a leak tells who asked for the memory, which takes longer.
The last line says how many reports there are.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "sanitize"
HOST = "x86_64-unknown-linux-gnu"
BUILT = TARGET / HOST / "release"

OPTIONS = "detect_leaks=1:detect_odr_violation=0:allocator_may_return_null=1:log_path={}"
# Debian's server has no frame pointers: without the slow way it is not seen who asked for memory.
if "WHOLE_STACKS" in os.environ:
    OPTIONS = f"fast_unwind_on_malloc=0:{OPTIONS}"

# Tests that unload another module, of the `redis-module` crate, which keeps two contexts that it does not free.
LEAKS_OF_OTHERS = ("effects..other_modules_hear_events",)


def build():
    command = ["rustup", "toolchain", "install", "nightly", "--profile", "minimal"]
    installed = subprocess.run(["cargo", "+nightly", "--version"], capture_output=True, check=False)
    if installed.returncode:
        subprocess.run(command, check=True)
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(TARGET),
        "CARGO_PROFILE_RELEASE_LTO": "off",
        "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
        "RUSTFLAGS": "-Zsanitizer=address -Zexternal-clangrt -Cforce-frame-pointers=yes",
    }
    for what in (["--lib"], ["--package", "redis-lock-test-modules", "--example", "broken"]):
        subprocess.run(["cargo", "+nightly", "build", "--release", "--target", HOST, *what], cwd=ROOT, env=environment, check=True)


def archives():
    """The archives that this machine's packages come from, as apt writes sources."""
    command = ["apt-get", "indextargets", "--format", "$(SIGNED_BY)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in sorted(set(listed.splitlines())):
        key, *where = line.split("|")
        # What apt does not know it leaves as it is.
        signed_by = f"[signed-by={key}] " if key.startswith("/") else ""
        yield f"deb-src {signed_by}{' '.join(where)}"


def unpack_sources(folder):
    """Debian's sources of the server, without Debian's changes, of the version that is installed. Returns where they are."""
    lists = folder / "sources.list"
    lists.write_text("".join(f"{line}\n" for line in archives()))
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    options = [f"Dir::State={folder}/state", f"Dir::Cache={folder}/cache", f"Dir::Etc::sourcelist={lists}", "Dir::Etc::sourceparts=/dev/null"]
    # root may read the folder, apt's own user possibly not.
    options += ["APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    apt = ["apt-get", "--quiet", *(word for option in options for word in ("-o", option))]
    subprocess.run([*apt, "update"], stdout=subprocess.DEVNULL, check=True)
    installed = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"v=(\S+)", installed)[1]
    subprocess.run([*apt, "source", "--download-only", "redis"], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["tar", "-xzf", f"redis_{version}.orig.tar.gz"], cwd=folder, check=True)
    return folder / f"redis-{version}"


def instrumented_server():
    """The server's program with every load and store checked; the installed one, with a word about it, if that cannot be had."""
    built = TARGET / "instrumented/redis-server"
    if not built.exists():
        try:
            with tempfile.TemporaryDirectory() as folder:
                sources = unpack_sources(Path(folder))
                make = ["make", f"-j{os.cpu_count()}", "MALLOC=libc", "SANITIZER=address", "BUILD_TLS=yes", "redis-server"]
                subprocess.run(make, cwd=sources, capture_output=True, check=True)
                built.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(sources / "src/redis-server", built)
        except (OSError, subprocess.CalledProcessError, TypeError) as error:
            print(f"SKIPPED: no server that is checked itself: {error}", file=sys.stderr)
            return shutil.which("redis-server")
    print("the server is checked, too", flush=True)
    return built


def write_server():
    """A redis-server that begins with the sanitizer, to be found before the real one. Returns where reports go."""
    asked = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = Path(asked.stdout.strip()).resolve()
    folder, reports = TARGET / "bin", TARGET / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    server = folder / "redis-server"
    server.write_text(
        "#!/bin/sh\n"
        f'export LD_PRELOAD="{library}${{LD_PRELOAD:+:$LD_PRELOAD}}"\n'
        # A colon ends an option.
        'name=$(printf %s "${TEST_NAME:-none}" | tr : .)\n'
        f'export ASAN_OPTIONS="{OPTIONS.format(reports)}/$name"\n'
        f'exec {instrumented_server()} "$@"\n'
    )
    server.chmod(0o755)
    return folder, reports


def texts(reports, known=()):
    new = [path for path in sorted(reports.iterdir()) if not path.name.startswith(known)]
    return [f"---- {path.name}\n{path.read_text(errors='replace')}" for path in new]


def see_that_defects_are_found(folder, reports):
    for command, found in (("BROKEN.READ", "heap-use-after-free"), ("BROKEN.LEAK", "LeakSanitizer: detected memory leaks")):
        with tempfile.TemporaryDirectory() as there:
            socket = str(Path(there) / "socket")
            module = str(BUILT / "examples/libbroken.so")
            server = [str(folder / "redis-server"), "--port", "0", "--unixsocket", socket, "--save", "", "--loadmodule", module]
            with subprocess.Popen(server, cwd=there, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
                until = time.monotonic() + 60
                while not Path(socket).exists() and time.monotonic() < until:
                    time.sleep(0.05)
                for words in ([command], ["SHUTDOWN", "NOSAVE"]):
                    subprocess.run(["redis-cli", "-s", socket, *words], capture_output=True, timeout=60, check=False)
                running.wait(60)
        if not any(found in text for text in texts(reports)):
            sys.exit(f"{command} was not found out: nothing would be")
        for report in reports.iterdir():
            report.unlink()
        print(f"{command}: found, as it should be", flush=True)


def main(*words):
    build()
    folder, reports = write_server()
    see_that_defects_are_found(folder, reports)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "REDIS_LOCK_MODULE": str(BUILT / "libredis_lock.so"),
        "SHUT_SERVERS_DOWN": "1",
        # A server that does not start is no reason to skip a test.
        "REQUIRE_ALL_SERVERS": "1",
    }
    chosen = [f"{word}+::redis_7" for word in words or [""]]
    ran = subprocess.run([sys.executable, ROOT / "tests/run.py", "every", *chosen], env=environment, check=False)
    found = texts(reports, LEAKS_OF_OTHERS)
    for text in found:
        print(text)
    print(f"{len(found)} reports of sanitizers")
    return ran.returncode == 0 and not found


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:]) else 1)
