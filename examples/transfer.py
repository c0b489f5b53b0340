#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Moves money between ten accounts in fifty threads. Each locks both accounts at once, in any order: no deadlock.

python3 examples/transfer.py redis://127.0.0.1:6379
"""

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import redis
from redis_lock_client import Locks

if len(sys.argv) != 2:
    print("usage: transfer.py URL", file=sys.stderr)
    sys.exit(2)
client = redis.Redis.from_url(sys.argv[1], decode_responses=True)
locks = Locks(client)
# The accounts have one hash tag, so that this works in a cluster as well.
accounts = [f"{{example:bank}}:{number}" for number in range(10)]
client.mset(dict.fromkeys(accounts, 1000))


def transfer(_: int) -> None:
    rich, poor = random.sample(accounts, 2)
    with locks.lock(f"{rich}:lock", f"{poor}:lock"):
        mine, theirs = map(int, client.mget(rich, poor))
        amount = random.randint(0, mine)
        client.mset({rich: mine - amount, poor: theirs + amount})


with ThreadPoolExecutor(50) as threads:
    list(threads.map(transfer, range(1000)))
print(f"there are {sum(map(int, client.mget(accounts)))} of 10000")
locks.close()
