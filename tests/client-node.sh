#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds, lints and tests a copy of clients/node in target/client-node, with the module in target/release. Packages are downloaded
# from the registry that this machine's npm uses. Without them, prints a line and skips. With `build` as its argument, only makes
# the driver, target/client-node/driver.mjs, and the examples beside it.

set -eu
cd "$(dirname -- "$0")/.."
out=$PWD/target/client-node once_more=$PWD/tests/once_more.sh
export REDIS_LOCK_MODULE="${REDIS_LOCK_MODULE:-$PWD/target/release/libredis_lock.so}"
mkdir -p "$out"

skip() {
    echo "SKIPPED: clients/node: $1" >&2
    [ "${REQUIRE_ALL_SERVERS:-}" != 1 ] || exit 1
    exit 0
}

for program in node npm; do
    command -v $program >/dev/null || skip "there is no $program"
done
major=$(node -p 'process.versions.node.split(".")[0]')
[ "$major" -ge 20 ] || skip "it needs Node 20, and this is $major"

# Two runs at the same time must not work in the same folder.
exec 9>"$out/.lock"
flock 9

sources="src test driver.mjs bench.mjs eslint.config.mjs package.json package-lock.json tsconfig.json tsconfig.cjs.json README.md"
for source in $sources; do
    rm -rf "${out:?}/$source"
    cp -R "clients/node/$source" "$out"
done
# In that folder, the examples find the package and its dependencies.
mkdir -p "$out/examples"
for example in examples/*.mjs; do
    [ ! -f "$example" ] || cp "$example" "$out/examples"
done
cd "$out"
now="$(cat package-lock.json) $(node --version)"
if [ "$now" != "$(cat .installed 2>/dev/null)" ]; then
    npm ci --no-audit --no-fund --ignore-scripts --loglevel error >why 2>&1 || skip "its packages cannot be had: $(tail -n 1 why)"
    echo "$now" >.installed
fi
rm -rf dist
npm run --silent build
[ "${1:-}" != build ] || exit 0

command -v redis-server >/dev/null || skip "there is no redis-server"
[ -f "$REDIS_LOCK_MODULE" ] || skip "there is no $REDIS_LOCK_MODULE"
# A test that hangs must not block the other tests.
timeout --kill-after=5 600 npm run --silent lint
timeout --kill-after=5 600 sh test/types/check.sh
timeout --kill-after=5 1200 npm run --silent test
for library in ioredis node-redis; do
    LIBRARY=$library sh "$once_more" timeout --kill-after=5 300 node test/verrou/run.mjs
done
