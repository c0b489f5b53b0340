// SPDX-License-Identifier: MIT

// A process that ends when nothing keeps it alive: see locks.test.mjs.

import { Locks } from 'redis-lock-client';
import { LIBRARIES } from './support.mjs';

const [name, port, mode] = process.argv.slice(2);
const client = await LIBRARIES[name].connect(Number(port));
const locks = new Locks(client);
await locks.lock('k').run(() => undefined);
if (mode === 'held') globalThis.hold = await locks.lock('k').acquire();
if (mode === 'waiting') void locks.lock('taken').acquire();
if (mode === 'closed') {
  globalThis.hold = await locks.lock('k').acquire();
  locks.lock('taken').acquire().catch(() => undefined);
  await locks.close();
}
LIBRARIES[name].end(client);
process.stdout.write('done\n');
