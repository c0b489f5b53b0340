#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts under ten locks in a thousand tasks of asyncio. All wait over a few connections.

python3 examples/tasks.py redis://127.0.0.1:6379 1000
"""

import asyncio
import sys

import redis.asyncio
from redis_lock_client import aio


async def main(url: str, tasks: int) -> None:
    # Only holders use this client, and there are ten at most.
    client = redis.asyncio.Redis.from_url(url)
    locks = aio.Locks(client)

    async def count(number: int) -> None:
        counter = f"example:counter:{number % 10}"
        async with locks.lock(f"example:lock:{number % 10}"):
            value = int(await client.get(counter) or 0)
            await client.set(counter, value + 1)

    await asyncio.gather(*(count(number) for number in range(tasks)))
    await locks.close()
    await client.aclose()


if len(sys.argv) != 3:
    print("usage: tasks.py URL TASKS", file=sys.stderr)
    sys.exit(2)
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
