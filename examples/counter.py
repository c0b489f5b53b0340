#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts under a lock: reads a number and writes it plus one. No increment gets lost, even beside the other languages.

python3 examples/counter.py redis://127.0.0.1:6379 100
"""

import sys

import redis
from redis_lock_client import Locks

if len(sys.argv) != 3:
    print("usage: counter.py URL TIMES", file=sys.stderr)
    sys.exit(2)
client = redis.Redis.from_url(sys.argv[1])
locks = Locks(client)
for _ in range(int(sys.argv[2])):
    # The loss of the lock ends the program: the scope raises Lost.
    with locks.lock("example:lock"):
        value = int(client.get("example:counter") or 0)
        client.set("example:counter", value + 1)
locks.close()
