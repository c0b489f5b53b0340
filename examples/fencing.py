#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes a write that only the holder of the lock can make. Start two, and answer the first after the second: it fails.

python3 examples/fencing.py redis://127.0.0.1:6379 alice
"""

import sys

import redis
from redis_lock_client import Locks, Lost

if len(sys.argv) != 3:
    print("usage: fencing.py URL NAME", file=sys.stderr)
    sys.exit(2)
client = redis.Redis.from_url(sys.argv[1], decode_responses=True)
locks = Locks(client)
# Nothing renews the lease: it ends three seconds after the grant.
hold = locks.lock("example:lock", lease=3, fence=True).acquire()
balance = int(client.get("example:balance") or 0)
input(f"{sys.argv[2]} has token {hold.token}, and reads {balance}. Enter deposits 10: ")
try:
    hold.guard("SET", "example:balance", balance + 10)
    hold.release()
    print("deposited")
except Lost:
    # Another owner was granted the lock in the meantime. Nothing is written.
    sys.exit("refused: the lock was lost")
finally:
    locks.close()
