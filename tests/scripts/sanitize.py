#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the tests of one server with AddressSanitizer and LeakSanitizer in the module and the server.

    tests/scripts/sanitize.py             all tests on the installed redis-server
    tests/scripts/sanitize.py fencing     the tests with this word in their names

Rust's nightly toolchain builds the module. The server is built from Debian's sources of the installed version. Both check every
load and store. Without these sources, the installed server runs. The preloaded sanitizer replaces malloc for server and module.
Each server is shut down at the end of its test, not killed, and is then searched for leaks. At first, the script checks that the
sanitizers find known defects.

WHOLE_STACKS=1 in the environment adds the whole stack of the allocation to a leak report, which takes longer. The last line has
the number of reports.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "sanitize"
HOST = "x86_64-unknown-linux-gnu"
BUILT = TARGET / HOST / "release"

OPTIONS = "detect_leaks=1:detect_odr_violation=0:allocator_may_return_null=1:log_path={}"
# Debian's server has no frame pointers, so only the slow unwinder shows the whole stack of an allocation.
if "WHOLE_STACKS" in os.environ:
    OPTIONS = f"fast_unwind_on_malloc=0:{OPTIONS}"

# Tests that unload another module: its crate, `redis-module`, never frees two contexts.
KNOWN_LEAKS = ("effects..other_modules_get_events",)


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
        command = ["cargo", "+nightly", "build", "--release", "--target", HOST, *what]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)


def archives():
    """The archives of this machine's packages, as lines of apt's list of sources."""
    command = ["apt-get", "indextargets", "--format", "$(SIGNED_BY)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in sorted(set(listed.splitlines())):
        key, *where = line.split("|")
        # apt leaves an unknown field as it is.
        signed_by = f"[signed-by={key}] " if key.startswith("/") else ""
        yield f"deb-src {signed_by}{' '.join(where)}"


def unpack_sources(folder):
    """Unpacks the sources of the installed server version, without Debian's changes. Returns their folder."""
    lists = folder / "sources.list"
    lists.write_text("".join(f"{line}\n" for line in archives()))
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    options = [f"Dir::State={folder}/state", f"Dir::Cache={folder}/cache"]
    options += [f"Dir::Etc::sourcelist={lists}", "Dir::Etc::sourceparts=/dev/null"]
    # apt's own user may have no permission to read the folder; root has.
    options += ["APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    apt = ["apt-get", "--quiet", *(word for option in options for word in ("-o", option))]
    subprocess.run([*apt, "update"], stdout=subprocess.DEVNULL, check=True)
    installed = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"v=(\S+)", installed)[1]
    subprocess.run([*apt, "source", "--download-only", "redis"], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["tar", "-xzf", f"redis_{version}.orig.tar.gz"], cwd=folder, check=True)
    return folder / f"redis-{version}"


def instrumented_server():
    """Builds a server that checks every load and store. Without sources, it prints SKIPPED and returns the installed server."""
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
            print(f"SKIPPED: the server itself is not sanitized: {error}", file=sys.stderr)
            return shutil.which("redis-server")
    print("the server is sanitized, too", flush=True)
    return built


def write_server():
    """Writes a redis-server script that preloads the sanitizer. Returns its folder, and the folder of reports."""
    printed = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = Path(printed.stdout.strip()).resolve()
    folder, reports = TARGET / "bin", TARGET / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    server = folder / "redis-server"
    server.write_text(
        "#!/bin/sh\n"
        f'export LD_PRELOAD="{library}${{LD_PRELOAD:+:$LD_PRELOAD}}"\n'
        # A colon would end the option.
        'name=$(printf %s "${TEST_NAME:-none}" | tr : .)\n'
        f'export ASAN_OPTIONS="{OPTIONS.format(reports)}/$name"\n'
        f'exec {instrumented_server()} "$@"\n'
    )
    server.chmod(0o755)
    return folder, reports


def texts(reports, known=()):
    new = [path for path in sorted(reports.iterdir()) if not path.name.startswith(known)]
    return [f"---- {path.name}\n{path.read_text(errors='replace')}" for path in new]


def check_that_defects_are_found(folder, reports):
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
            sys.exit(f"the defect of {command} was not found, so the sanitizers do not work")
        for report in reports.iterdir():
            report.unlink()
        print(f"{command}: the defect was found", flush=True)


def main(*words):
    build()
    folder, reports = write_server()
    check_that_defects_are_found(folder, reports)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "REDIS_LOCK_MODULE": str(BUILT / "libredis_lock.so"),
        "SHUT_SERVERS_DOWN": "1",
        # A server that does not start is a failure, not a skipped test.
        "REQUIRE_ALL_SERVERS": "1",
    }
    chosen = [f"{word}+::redis_7" for word in words or [""]]
    ran = subprocess.run([sys.executable, ROOT / "tests/scripts/run.py", "every", *chosen], env=environment, check=False)
    found = texts(reports, KNOWN_LEAKS)
    for text in found:
        print(text)
    print(f"{len(found)} reports of sanitizers")
    return ran.returncode == 0 and not found


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:]) else 1)
