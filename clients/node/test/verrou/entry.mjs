// SPDX-License-Identifier: MIT

// Runs the suite with japa.

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
