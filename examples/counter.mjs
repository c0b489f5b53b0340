// SPDX-License-Identifier: MIT
// Counts under a lock: reads a number and writes it plus one. No increment gets lost, even beside the other languages.
//
//     node counter.mjs redis://127.0.0.1:6379 100
//
// Run it in a folder after `npm install ioredis PATH/clients/node`.

import { Redis } from 'ioredis';
import { Locks } from 'redis-lock-client';

const [url, times] = process.argv.slice(2);
const client = new Redis(url);
const locks = new Locks(client);
const lock = locks.lock('example:lock');
for (let round = 0; round < Number(times); round++) {
  // The loss of the lock ends the program: the promise is rejected with a LostError.
  await lock.run(async () => {
    const value = Number(await client.get('example:counter'));
    await client.set('example:counter', value + 1);
  });
}
await locks.close();
await client.quit();
