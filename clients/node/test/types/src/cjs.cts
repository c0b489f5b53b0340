// SPDX-License-Identifier: MIT

import { Locks, LockError, MisuseError } from 'redis-lock-client';

try {
  new Locks(undefined as never);
} catch (error) {
  if (!(error instanceof LockError) || !(error instanceof MisuseError) || error.kind !== 'misuse') throw error;
}
