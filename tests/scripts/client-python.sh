#!/bin/sh
# SPDX-License-Identifier: MIT
# Lints and tests clients/python with the module in target/release. Dependencies come from the package index of this machine,
# and are installed in target/python-client. If they cannot be installed, it prints SKIPPED. With the argument `build`, it only
# installs the dependencies of clients/python/driver.py.

set -eu
cd "$(dirname -- "$0")/../.."
venv=target/python-client
pip="$venv/bin/python3 -m pip install --quiet --disable-pip-version-check"

skip() {
    echo "SKIPPED: clients/python: $1" >&2
    [ -z "${REQUIRE_ALL_SERVERS:-}" ] || exit 1
    exit 0
}

{ [ -x "$venv/bin/python3" ] || python3 -m venv "$venv"; } >/dev/null 2>&1 && $pip redis==8.1.0 ||
    skip "redis-py cannot be installed"
[ "${1:-}" != build ] || exit 0
# The tests of tooz import all its drivers, which need their own dependencies.
$pip pytest==9.2.0 pytest-asyncio==1.5.0 pytest-timeout==2.4.0 pytest-rerunfailures==16.7 pytest-xdist==3.8.0 \
    mypy==2.4.1 ruff==0.17.6 dogpile.cache==1.5.0 tooz==9.1.0 \
    testtools==2.9.1 fixtures==4.3.2 etcd3gw==2.7.0 sysv_ipc==1.2.0 pymemcache==4.0.0 django-redis==7.0.0 Django==5.2.19 ||
    skip "its packages cannot be installed"

# Users install it the same way, and backends are found by their names. The build writes beside its sources, so they are copied.
copy=$venv/copy
if ! diff -rq --exclude=__pycache__ clients/python/src "$copy/src" >/dev/null 2>&1 ||
    ! diff -q clients/python/pyproject.toml "$copy/pyproject.toml" >/dev/null 2>&1; then
    rm -rf "$copy" && mkdir -p "$copy"
    cp -R clients/python/pyproject.toml clients/python/README.md clients/python/src "$copy"
    rm -rf "$copy/src/"*.egg-info
    $pip --no-deps --force-reinstall "./$copy" || { rm -rf "$copy"; skip "the package cannot be built"; }
fi

# One test runs with the oldest redis-py that works.
[ -d "$venv/redis-5" ] || $pip --no-deps --target "$venv/redis-5" redis==5.0.8 || skip "redis-py 5 cannot be installed"

python=$PWD/$venv/bin/python3 up=$PWD/$venv/up
mkdir -p "$up"
cd clients/python
export PYTHONDONTWRITEBYTECODE=1 REDIS_PY_5="$PWD/../../$venv/redis-5"
"$python" -m ruff check --no-cache .
"$python" -m mypy --cache-dir="$up/mypy" src
! command -v npx >/dev/null || timeout --kill-after=5 300 npx --yes pyright@1.1.414 --pythonpath "$python" src
# The time limits end a test that hangs. See tests/retried.txt.
PYTHONPATH=src timeout --kill-after=10 1200 "$python" -m pytest -q -p no:cacheprovider -p no:asyncio \
    --timeout=100 --numprocesses=4 --reruns 2 -r R tests
timeout --kill-after=10 900 "$python" acceptance/run.py "$up"
cd ../..
exec timeout --kill-after=10 900 python3 tests/scripts/first_use.py python
