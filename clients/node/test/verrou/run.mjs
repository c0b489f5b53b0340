// SPDX-License-Identifier: MIT

// Runs Verrou's own tests of stores, and fails unless as many passed as there are. None is left out.

import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { Server } from '../support.mjs';

/** If it is another number, somebody has to look. */
const TESTS = 25;

const server = await Server.start();
const entry = fileURLToPath(new URL('entry.mjs', import.meta.url));
const { stdout, stderr, status } = spawnSync('node', [entry], {
  env: { ...process.env, PORT: String(server.port) },
  encoding: 'utf8',
  timeout: 50_000,
});
await server.stop();
const lines = stdout.split('\n').filter((line) => line.startsWith('{'));
const { total = 0, passed = 0 } = lines.map((line) => JSON.parse(line)).find(({ aggregates }) => aggregates)?.aggregates ?? {};
if (status !== 0 || passed !== TESTS || total !== TESTS) {
  console.error(stdout, stderr);
  console.error(`Verrou: of ${TESTS} tests ${total} ran, and ${passed} passed`);
  process.exit(1);
}
console.log(`Verrou's own tests of stores: ${passed} passed`);
process.exit(0);
