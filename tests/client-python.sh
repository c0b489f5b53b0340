#!/bin/sh
# SPDX-License-Identifier: MIT
# Lints and tests clients/python with the module in target/release. What it needs comes from wherever this machine's pip gets
# its packages, into target/python-client. Where that cannot be had, it says so, and with REQUIRE_ALL_SERVERS=1 it fails.

set -eu
cd "$(dirname -- "$0")/.."
venv=target/python-client
if ! { [ -x "$venv/bin/pytest" ] || python3 -m venv "$venv"; } >/dev/null 2>&1 ||
    ! "$venv/bin/python3" -m pip install --quiet --disable-pip-version-check 'redis>=5' pytest mypy ruff; then
    echo "SKIPPED: clients/python: its packages cannot be installed" >&2
    [ "${REQUIRE_ALL_SERVERS:-}" != 1 ]
    exit
fi
venv=$PWD/$venv
cd clients/python
"$venv/bin/ruff" check --no-cache .
"$venv/bin/mypy" --cache-dir=/dev/null src
PYTHONPATH=src exec "$venv/bin/python3" -m pytest -q -p no:cacheprovider tests
