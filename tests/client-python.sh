#!/bin/sh
# SPDX-License-Identifier: MIT
# Lints and tests clients/python with the module in target/release. What it needs comes from wherever this machine's pip gets
# its packages, into target/python-client. Where that cannot be had, it says so.

set -eu
cd "$(dirname -- "$0")/.."
venv=target/python-client
if ! { [ -x "$venv/bin/pytest" ] || python3 -m venv "$venv"; } >/dev/null 2>&1 ||
    ! "$venv/bin/python3" -m pip install --quiet --disable-pip-version-check \
        redis==8.1.0 pytest==9.2.0 mypy==2.4.1 ruff==0.17.6; then
    echo "SKIPPED: clients/python: its packages cannot be installed" >&2
    exit
fi
venv=$PWD/$venv
cd clients/python
"$venv/bin/ruff" check --no-cache .
"$venv/bin/mypy" --cache-dir=/dev/null src
# A test that hangs must not keep the others waiting for ever.
PYTHONPATH=src exec timeout --kill-after=10 300 "$venv/bin/python3" -m pytest -q -p no:cacheprovider tests
