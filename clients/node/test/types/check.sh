#!/bin/sh
# SPDX-License-Identifier: MIT
# Uses the package as it would be published: its types by each way in which TypeScript finds them, and what runs.

set -eu
cd "$(dirname -- "$0")"
package=node_modules/redis-lock-client
rm -rf node_modules out
mkdir -p "$package"
(cd ../.. && npm pack --silent --pack-destination test/types >/dev/null)
tar -xzf redis-lock-client-*.tgz -C "$package" --strip-components 1
rm redis-lock-client-*.tgz
tsc=../../node_modules/.bin/tsc
# Ours whole; what belongs to others is theirs.
"$tsc" --noEmit -p tsconfig.strict.json
"$tsc" --noEmit -p tsconfig.bundler.json
"$tsc" -p tsconfig.node16.json
node out/esm.mjs
node out/cjs.cjs
