// SPDX-License-Identifier: MIT

// Has japa run the suite.

import { assert } from '@japa/assert';
import { configure, processCLIArgs, run } from '@japa/runner';

processCLIArgs([]);
configure({
  cwd: import.meta.dirname,
  files: ['suite.mjs'],
  plugins: [assert()],
  reporters: { activated: ['ndjson'] },
});
await run();
