// SPDX-License-Identifier: MIT

// A process that has done with its own client: see faults.test.mjs.

import { Locks } from '@redis-lock/client';
import { LIBRARIES } from './support.mjs';

const [name, port, what] = process.argv.slice(2);
const client = await LIBRARIES[name].connect(Number(port));
const locks = new Locks(client);
await locks.request('k', () => undefined);
if (what.endsWith('is held')) await locks.acquire('k');
if (what.endsWith('is waited for')) void locks.acquire('taken');
if (what.includes('nothing')) await (await locks.acquire('k', { lease: 60_000 })).release();
if (what.includes('close')) {
  await locks.acquire('k', { lease: 60_000 });
  locks.acquire('taken').catch(() => undefined);
  await locks.close();
}
LIBRARIES[name].end(client);
process.stdout.write('done\n');
