#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs the newest redis-py in target/examples-clients/python/venv, for tests of the programs of docs/clients/python. The
# Python of this machine may have an older one, with which the tests run, too.
#
# Does nothing if the virtual environment is up to date. Without Python it prints SKIPPED and succeeds; with
# REQUIRE_ALL_SERVERS=1 it fails.

set -eu
cd "$(dirname -- "$0")/.."
source=$PWD/docs/clients/python
built=$PWD/target/examples-clients

skip() {
    echo "SKIPPED: the programs of docs/clients/python: $1; tests with the newest redis-py will not run" >&2
    rm -rf "${built:?}/python"
    if [ "${REQUIRE_ALL_SERVERS:-}" = 1 ]; then
        echo "FAILED: REQUIRE_ALL_SERVERS is set, and the newest redis-py is missing" >&2
        exit 1
    fi
    exit 0
}

# The environment can be moved after the build: its interpreter finds the packages beside it. A syntax error in a program
# fails here, not in a test.
build() {
    python3 -m venv "$tmp/python/venv" &&
        "$tmp/python/venv/bin/python3" -m pip install --quiet --disable-pip-version-check \
            --requirement "$source/requirements.txt" &&
        cp "$source"/*.py "$tmp/python" &&
        "$tmp/python/venv/bin/python3" -m py_compile "$tmp"/python/*.py
}

command -v python3 >/dev/null || skip "no python3"
now="$(cd "$source" && cksum ./*) $(cksum <tests/setup-examples.sh) $(python3 --version)"

mkdir -p "$built"
# Two runs at the same time must not build in the same place.
exec 9>"$built/.lock"
flock 9 2>/dev/null || true
[ "$now" != "$(cat "$built/python/.built" 2>/dev/null)" ] || exit 0
tmp=$(mktemp -d "$built/.new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

if ! build >"$tmp/log" 2>&1; then
    tail -n 20 "$tmp/log" >&2
    skip "the installation failed"
fi
echo "$now" >"$tmp/python/.built"
rm -rf "${built:?}/python"
mv "$tmp/python" "$built/python"
echo "redis-py: installed $("$built/python/venv/bin/python3" -c 'import redis; print(redis.__version__)')"
