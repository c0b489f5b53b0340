// SPDX-License-Identifier: MIT

// Runs files of tests. A test that fails, as it may on a busy machine, runs again alone, twice at most, and is named.

import { relative, resolve } from 'node:path';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';

// Limit for one file, in milliseconds: a test that hangs must not delay the others for ever.
const LIMIT = 400_000;

function said(names) {
  return names === null ? 'all' : [...names].join('; ');
}

/** Runs files, or only the tests of these names in them. Returns the files that failed, each with the names of its tests, or null
 *  if all must run again. */
async function play(files, names = null) {
  const failed = new Map();
  let passed = 0;
  const testNamePatterns = names && [...names].map((name) => new RegExp(`^${name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')}$`));
  const events = run({ files, concurrency: 2, timeout: LIMIT, testNamePatterns });
  events.on('test:pass', ({ skip, details }) => (passed += skip === undefined && details.type !== 'suite'));
  events.on('test:fail', ({ name, nesting, file, details }) => {
    const why = details.error.failureType;
    // Each test of a suite reports its own failure.
    if (why === 'subtestsFailed') return;
    const isOne = nesting > 0 && (why === 'testCodeFailure' || why === 'testTimeoutFailure');
    failed.set(file, isOne && failed.get(file) !== null ? new Set(failed.get(file)).add(name) : null);
  });
  const printed = events.compose(new spec());
  printed.pipe(process.stdout, { end: false });
  await new Promise((resolve) => printed.on('end', resolve));
  if (names !== null && passed === 0 && failed.size === 0) throw new Error(`no tests have these names: ${said(names)}`);
  return failed;
}

let failed = await play(process.argv.slice(2).map((file) => resolve(file)));
for (let again = 0; again < 2 && failed.size > 0; again++) {
  const before = failed;
  failed = new Map();
  for (const [file, names] of before) {
    console.log(`AGAIN: ${relative('.', file)}: ${said(names)}`);
    for (const one of await play([file], names)) failed.set(...one);
  }
}
process.exitCode = failed.size > 0 ? 1 : 0;
for (const [file, names] of failed) console.log(`FAILED: ${relative('.', file)}: ${said(names)}`);
