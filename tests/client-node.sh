#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds, lints and tests clients/node in target/client-node with the module in target/release. What it needs comes from wherever this
# machine's npm gets its packages. With `build` as its argument it only builds what the driver needs: target/client-node/driver.mjs, and the example.

set -eu
cd "$(dirname -- "$0")/.."
out=$PWD/target/client-node
mkdir -p "$out"
missing() {
    echo "SKIPPED: clients/node: $1: $(tail -n 1 "$out/why")" >&2
    [ "${REQUIRE_ALL_SERVERS:-}" != 1 ] || exit 1
    exit 0
}
{ command -v node && command -v npm; } >"$out/why" 2>&1 || missing "there is no node or npm"
# Two that run at once must not do the same work in the same place.
exec 9>"$out/.lock"
flock 9 2>/dev/null || true

rm -rf "$out/src" "$out/test" "$out/dist"
(cd clients/node && tar -cf - --exclude node_modules --exclude dist .) | (cd "$out" && tar -xf -)
# There it finds the package, and what that needs.
mkdir -p "$out/examples" && cp examples/counter.mjs "$out/examples"
cd "$out"
now="$(cat package-lock.json) $(node --version)"
if [ "$now" != "$(cat .installed 2>/dev/null)" ]; then
    npm ci --no-audit --no-fund --ignore-scripts >why 2>&1 || missing "its packages cannot be had"
    echo "$now" >.installed
fi
npm run --silent build
[ "${1:-}" != build ] || exit 0

npm run --silent lint
sh test/types/check.sh
# A test that hangs must not keep the others waiting for ever.
timeout --kill-after=5 200 node --test --test-timeout=60000 test/locks.test.mjs
timeout --kill-after=5 60 node test/verrou/run.mjs
