#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Calls an API that allows ten calls at a time, from fifty threads.

python3 examples/permits.py redis://127.0.0.1:6379
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import redis
from redis_lock_client import Locks

if len(sys.argv) != 2:
    print("usage: permits.py URL", file=sys.stderr)
    sys.exit(2)
client = redis.Redis.from_url(sys.argv[1])
locks = Locks(client)


def call(_: int) -> int:
    with locks.lock("example:api", limit=10):
        at_once = client.incr("example:api:calls")  # represents the API
        client.decr("example:api:calls")
    return at_once


with ThreadPoolExecutor(50) as threads:
    print(f"{max(threads.map(call, range(500)))} calls at a time at most")
locks.close()
