#!/bin/sh
# SPDX-License-Identifier: MIT
# Lints and tests clients/python with the module in target/release. What it needs comes from wherever this machine's pip gets
# its packages, into target/python-client. Where that cannot be had, it says so. With `build` it only makes what
# clients/python/driver.py needs.

set -eu
cd "$(dirname -- "$0")/.."
venv=target/python-client
pip="$venv/bin/python3 -m pip install --quiet --disable-pip-version-check"

skip() {
    echo "SKIPPED: clients/python: $1" >&2
    [ -z "${REQUIRE_ALL_SERVERS:-}" ] || exit 1
    exit 0
}

{ [ -x "$venv/bin/python3" ] || python3 -m venv "$venv"; } >/dev/null 2>&1 && $pip redis==8.1.0 || skip "redis-py cannot be installed"
[ "${1:-}" != build ] || exit 0
$pip pytest==9.2.0 mypy==2.4.1 ruff==0.17.6 || skip "its packages cannot be installed"
venv=$PWD/$venv
cd clients/python
"$venv/bin/ruff" check --no-cache .
"$venv/bin/mypy" --cache-dir=/dev/null src
# A test that hangs must not keep the others waiting for ever.
PYTHONPATH=src exec timeout --kill-after=10 300 "$venv/bin/python3" -m pytest -q -p no:cacheprovider tests
