# SPDX-License-Identifier: MIT
"""Runs the suites of other projects on a server of their own: `run.py FOLDER`. Downloads are kept in the folder."""

import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REDIS_PY = "8.1.0"
sys.path.insert(0, str(HERE.parent / "tests"))

from conftest import Server  # noqa: E402


def redis_py(folder):
    """The sources of redis-py, which have its tests."""
    sources = folder / f"redis-{REDIS_PY}"
    if not sources.exists():
        words = ["download", "--quiet", "--no-deps", "--no-binary", "redis", "--dest", str(folder), f"redis=={REDIS_PY}"]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        with tarfile.open(folder / f"redis-{REDIS_PY}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return sources


def run(name, at, server, words):
    print(f"{name}:", flush=True)
    folders = os.pathsep.join([str(HERE), str(HERE.parent / "src")])
    given = {"PYTHONPATH": folders, "EXPECTED": str(HERE / f"{name}.skips"), "PORT": str(server.port)}
    given["TOOZ_TEST_URL"] = f"redis-lock://127.0.0.1:{server.port}"
    quiet = ["-q", "--no-header", "--tb=short", "--disable-warnings", "-o", "asyncio_default_fixture_loop_scope=function"]
    again = ["--timeout=100", "--reruns=2", "-rR"]
    words = [*quiet, *again, "-p", "no:cacheprovider", "-p", "expected", "--rootdir", str(at), *words]
    return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=at, env={**os.environ, **given}).returncode


def main():
    sources = redis_py(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        url = f"--redis-url=redis://127.0.0.1:{server.port}/0"
        tests = ["tests/test_lock.py", "tests/test_asyncio/test_lock.py"]
        try:
            results = [run("redis-py", sources, server, ["-p", "redis_py", "--capture=fd", url, *tests])]
            results.append(run("dogpile", HERE, server, ["dogpile_suite.py"]))
            results.append(run("tooz", HERE, server, ["--pyargs", "tooz.tests.test_coordination", "-k", "TestAPI and lock"]))
            if importlib.util.find_spec("test.lock_tests") is None:
                print("SKIPPED: clients/python: this Python has no test.lock_tests", file=sys.stderr)
                results.append(int("REQUIRE_ALL_SERVERS" in os.environ))
            else:
                results.append(run("cpython", HERE, server, ["cpython_suite.py"]))
        finally:
            server.stop()
    sys.exit(any(results))


main()
