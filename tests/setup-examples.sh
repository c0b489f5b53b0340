#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the examples of the clients for other languages into target/examples-clients/, with what they depend on:
#
#   go/worker                         the program
#   node/worker.mjs                   beside its node_modules
#   python/venv/                      a Python with the newest redis-py
#   java-lettuce/, java-jedis/        classes in target/classes, dependencies in target/dependency
#
# The examples in Rust belong to the workspace. Downloads come from the sources that this machine's pip, go, npm and mvn use. An
# example that has not changed since its build is not built again.
#
# Without the tools of an example, prints a line and skips the example; with REQUIRE_ALL_SERVERS=1, fails instead.

set -eu
cd "$(dirname -- "$0")/.."
built=$PWD/target/examples-clients
skipped=0

skip() {
    echo "SKIPPED: the example $1: $2; tests of it will not run" >&2
    skipped=1
}

# Prints a checksum of everything that affects a build.
fingerprint() {
    (cd "docs/clients/$1" && find . \( -name target -o -name node_modules \) -prune -o -type f -print |
        LC_ALL=C sort | while read -r file; do
        cksum "$file"
    done)
    cksum <tests/setup-examples.sh
    echo "$2"
}

# Builds one example in a copy of its folder. Replaces the old build only after a success.
get() {
    name=$1
    build=$2
    shift 2
    for tool in "$@"; do
        if ! command -v "$tool" >/dev/null; then
            skip "$name" "no $tool"
            rm -rf "${built:?}/$name"
            return
        fi
    done
    case $1 in
    go) version=$(GOTOOLCHAIN=local go version) ;;
    node) version=$(node --version) ;;
    python3) version=$(python3 --version) ;;
    *) version=$(javac -version 2>&1) ;;
    esac
    now=$(fingerprint "$name" "$version")
    [ "$now" != "$(cat "$built/$name/.built" 2>/dev/null)" ] || return 0
    mkdir "$tmp/$name"
    cp -R "docs/clients/$name/." "$tmp/$name"
    rm -rf "$tmp/$name/target" "$tmp/$name/node_modules"
    if ! (cd "$tmp/$name" && "$build") >"$tmp/log" 2>&1; then
        tail -n 20 "$tmp/log" >&2
        skip "$name" "it does not build"
        rm -rf "${built:?}/$name"
        return
    fi
    echo "$now" >"$tmp/$name/.built"
    rm -rf "${built:?}/$name"
    mv "$tmp/$name" "$built/$name"
    echo "example $name: built with $version"
}

# A new Go must not download another version of itself. The Go of Debian 12 ignores GOTOOLCHAIN. The state of the git repository
# must not affect the build.
build_go() {
    GOTOOLCHAIN=local GOFLAGS="${GOFLAGS:-} -mod=readonly -buildvcs=false" go build -o worker .
}

build_node() {
    npm ci --no-audit --no-fund --ignore-scripts
    # Finds syntax errors here, before a test does.
    node --check worker.mjs
    node --check inbox.mjs
}

# The interpreter finds its packages relative to itself, so the folder can be moved.
build_python() {
    python3 -m venv venv
    venv/bin/python3 -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
    venv/bin/python3 -m py_compile worker.py worker_async.py
}

build_java() {
    mvn --batch-mode --quiet compile dependency:copy-dependencies -DincludeScope=runtime
}

mkdir -p "$built"
# Two runs at the same time must not work in the same folder.
exec 9>"$built/.lock"
flock 9 2>/dev/null || true
tmp=$(mktemp -d "$built/.new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

get go build_go go
get node build_node node npm
get python build_python python3
get java-lettuce build_java javac mvn
get java-jedis build_java javac mvn

if [ "$skipped" = 1 ] && [ "${REQUIRE_ALL_SERVERS:-}" = 1 ]; then
    echo "FAILED: REQUIRE_ALL_SERVERS is set, and not all examples are there" >&2
    exit 1
fi
