#!/bin/sh
# SPDX-License-Identifier: MIT
# Do users' compilers find the types, in each way in which they look for them? Run where the package is built.

set -eu
root=$PWD
users=$(mktemp -d)
trap 'rm -rf "$users"' EXIT
mkdir -p "$users/node_modules/@redis-lock"
ln -s "$root" "$users/node_modules/@redis-lock/client"
for package in "$root"/node_modules/*; do ln -s "$package" "$users/node_modules/" 2>/dev/null || true; done
cat >"$users/use.ts" <<'TS'
import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { Locks, LostError, type Hold } from '@redis-lock/client';
import { RedisLockStore } from '@redis-lock/client/verrou';

const locks = new Locks(new Redis());
const others = new Locks(createClient());
export const number: Promise<number> = locks.request('a', async (hold: Hold) => hold.token ?? 0);
export const text: Promise<string> = others.request('a', { ifAvailable: true }, (hold) => (hold === null ? 'busy' : hold.owner));
export const store = new RedisLockStore(locks);
// @ts-expect-error: times are numbers
void locks.acquire('a', { wait: '5s' });
export { LostError };
TS
# Verrou has no CommonJS.
grep -v -e verrou -e RedisLockStore "$users/use.ts" >"$users/use.cts"
cp "$users/use.ts" "$users/use.mts"
compile() {
    "$root/node_modules/.bin/tsc" --noEmit --strict --skipLibCheck --target es2022 --lib es2022,esnext.disposable --types node \
        --typeRoots "$root/node_modules/@types" "$@"
}
compile --module node16 --moduleResolution node16 "$users/use.mts" "$users/use.cts"
compile --module esnext --moduleResolution bundler "$users/use.ts"
node --input-type=module -e "import('@redis-lock/client').then((all) => { if (!all.Locks) process.exit(1); })"
node -e "if (!require('@redis-lock/client').Locks) process.exit(1)"
