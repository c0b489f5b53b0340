// SPDX-License-Identifier: MIT

// Runs Verrou's own tests of a store: LIBRARY=ioredis node run.mjs

import { assert } from '@japa/assert';
import { configure, run } from '@japa/runner';

const suite = new URL('suite.mjs', import.meta.url);

configure({
  files: () => [suite],
  plugins: [assert()],
  teardown: [async () => (await import(suite.href)).end()],
});
await run();
