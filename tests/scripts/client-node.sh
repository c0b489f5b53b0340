#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds, lints and tests clients/node with the module in target/release, in a copy in target/client-node. Dependencies come
# from the npm registry of this machine; if they cannot be downloaded, it prints SKIPPED. With the argument `build`, it only
# builds the driver target/client-node/driver.mjs and the examples beside it.

set -eu
cd "$(dirname -- "$0")/../.."
out=$PWD/target/client-node retry_listed=$PWD/tests/scripts/retry_listed.sh
export REDIS_LOCK_MODULE="${REDIS_LOCK_MODULE:-$PWD/target/release/libredis_lock.so}"
mkdir -p "$out"

skip() {
    echo "SKIPPED: clients/node: $1" >&2
    [ "${REQUIRE_ALL_SERVERS:-}" != 1 ] || exit 1
    exit 0
}

for program in node npm; do
    command -v $program >/dev/null || skip "$program is missing"
done
major=$(node -p 'process.versions.node.split(".")[0]')
[ "$major" -ge 20 ] || skip "Node $major is too old, Node 20 is required"

# Two runs at the same time must not build in the same place.
exec 9>"$out/.lock"
flock 9

now=$({ find clients/node examples/*.mjs -type f | LC_ALL=C sort | xargs cksum; cat "$0"; node --version; } | cksum)
if [ "$now" != "$(cat "$out/.built" 2>/dev/null)" ]; then
    for source in src test driver.mjs bench.mjs eslint.config.mjs package.json package-lock.json tsconfig.json \
        tsconfig.cjs.json README.md; do
        rm -rf "${out:?}/$source"
        cp -R "clients/node/$source" "$out"
    done
    # In this folder, the examples find the package and its dependencies.
    mkdir -p "$out/examples"
    cp examples/*.mjs "$out/examples"
    cd "$out"
    installed="$(cat package-lock.json) $(node --version)"
    if [ "$installed" != "$(cat .installed 2>/dev/null)" ]; then
        npm ci --no-audit --no-fund --ignore-scripts --loglevel error >why 2>&1 ||
            skip "its packages cannot be downloaded: $(tail -n 1 why)"
        echo "$installed" >.installed
    fi
    rm -rf dist
    npm run --silent build
    echo "$now" >.built
    cd ../..
fi
[ "${1:-}" != build ] || exit 0
# The tests do not write where others build.
exec 9>"$out/.lock-tests"
flock 9
cd "$out"

command -v redis-server >/dev/null || skip "redis-server is missing"
[ -f "$REDIS_LOCK_MODULE" ] || skip "$REDIS_LOCK_MODULE is missing"
# The time limits end a test that hangs.
timeout --kill-after=5 600 npm run --silent lint
timeout --kill-after=5 600 sh test/types/check.sh
timeout --kill-after=5 1200 npm run --silent test
for library in ioredis node-redis; do
    LIBRARY=$library sh "$retry_listed" clients/node/verrou timeout --kill-after=5 300 node test/verrou/run.mjs
done
cd ../..
exec timeout --kill-after=5 900 python3 tests/scripts/first_use.py node
