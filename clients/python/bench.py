# SPDX-License-Identifier: MIT
"""Compares this package with the lock of redis-py and with python-redis-lock: `bench.py [SECONDS]`, on a server of its own.

Each thread or task acquires a lock, releases it and begins again. The results are locks per second, the longest wait, and the
server's CPU time per lock. *Impatient* workers hold the lock for 1 ms, and wait for it for at most 5 ms. *Others held* are
locks that the same object holds and renews meanwhile. Clients and server share the cores of this machine, so only the ratios
matter. `python-redis-lock` is skipped if it is not installed.
"""

import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path

import redis
import redis.asyncio

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))

from conftest import Server  # noqa: E402

from redis_lock_client import Locks, aio  # noqa: E402

try:
    import redis_lock as python_redis_lock
except ImportError:
    python_redis_lock = None

LEASE = 30

# In seconds: how long an impatient worker waits, how long it holds the lock, and how often other packages ask for it.
PATIENCE, HOLD, POLL = 0.005, 0.001, 0.001


class Ours:
    name = "this package"

    def __init__(self, port, keys):
        self.locks = Locks(redis.Redis(port=port))
        self.all = [self.locks.lock(key, lease=LEASE) for key in keys]

    def once(self, number):
        self.all[number].acquire().release()

    def impatient(self, number):
        hold = self.all[number].try_acquire(PATIENCE)
        if hold:
            time.sleep(HOLD)
            hold.release()
        return hold is not None

    def close(self):
        self.locks.close()


class OursWithOthers(Ours):
    name = "this package, 1,000 others held"

    def __init__(self, port, keys):
        super().__init__(port, keys)
        self.others = [self.locks.lock(f"other{number}").acquire() for number in range(1000)]

    def close(self):
        for hold in self.others:
            hold.release()
        super().close()


class RedisPy:
    name = "redis-py"

    def __init__(self, port, keys):
        self.client = redis.Redis(port=port, max_connections=1000)
        self.all = [self.client.lock(key, timeout=LEASE) for key in keys]

    def once(self, number):
        self.all[number].acquire()
        self.all[number].release()

    def impatient(self, number):
        is_granted = self.all[number].acquire(sleep=POLL, blocking_timeout=PATIENCE)
        if is_granted:
            time.sleep(HOLD)
            self.all[number].release()
        return is_granted

    def close(self):
        self.client.close()


class PythonRedisLock(RedisPy):
    name = "python-redis-lock"

    def __init__(self, port, keys):
        self.client, self.all = redis.Redis(port=port, max_connections=1000), keys

    def once(self, number):
        with python_redis_lock.Lock(self.client, self.all[number], expire=LEASE):
            pass


class OursAsyncio:
    name = "this package, asyncio"

    def __init__(self, port, keys):
        self.locks = aio.Locks(redis.asyncio.Redis(port=port))
        self.all = [self.locks.lock(key, lease=LEASE) for key in keys]

    async def once(self, number):
        await (await self.all[number].acquire()).release()

    async def impatient(self, number):
        hold = await self.all[number].try_acquire(PATIENCE)
        if hold:
            await asyncio.sleep(HOLD)
            await hold.release()
        return hold is not None

    async def close(self):
        await self.locks.close()


class RedisPyAsyncio:
    name = "redis-py, asyncio"

    def __init__(self, port, keys):
        self.client = redis.asyncio.Redis(port=port, max_connections=1000)
        self.all = [self.client.lock(key, timeout=LEASE) for key in keys]

    async def once(self, number):
        await self.all[number].acquire()
        await self.all[number].release()

    async def impatient(self, number):
        self.all[number].sleep = POLL
        is_granted = await self.all[number].acquire(blocking_timeout=PATIENCE)
        if is_granted:
            await asyncio.sleep(HOLD)
            await self.all[number].release()
        return is_granted

    async def close(self):
        await self.client.aclose()


class Count:
    """Locks of one worker."""

    def __init__(self):
        self.locks, self.longest, self.since = 0, 0.0, 0.0

    def add(self):
        self.longest = max(self.longest, time.monotonic() - self.since)
        self.locks += 1


def in_threads(kind, port, keys, is_impatient, begin, seconds):
    subject, over = kind(port, keys), threading.Event()
    counts, ready = [Count() for _ in keys], threading.Barrier(len(keys) + 1, action=begin)

    def work(number):
        # The first lock opens the connections.
        subject.once(number)
        ready.wait()
        count = counts[number]
        while not over.is_set():
            count.since = time.monotonic()
            if not is_impatient:
                subject.once(number)
            elif not subject.impatient(number):
                continue
            count.add()

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(keys))]
    for worker in workers:
        worker.start()
    ready.wait(60)
    time.sleep(seconds)
    over.set()
    for worker in workers:
        worker.join(60)
    subject.close()
    return counts


def in_asyncio(kind, port, keys, is_impatient, begin, seconds):
    async def main():
        subject = kind(port, keys)
        counts = [Count() for _ in keys]
        await asyncio.gather(*(subject.once(number) for number in range(len(keys))))
        begin()
        until = time.monotonic() + seconds

        async def work(number):
            count = counts[number]
            while time.monotonic() < until:
                count.since = time.monotonic()
                if not is_impatient:
                    await subject.once(number)
                elif not await subject.impatient(number):
                    continue
                count.add()

        await asyncio.gather(*map(work, range(len(keys))))
        await subject.close()
        return counts

    return asyncio.run(main())


def cpu(server):
    info = server.admin.info("cpu")
    return info["used_cpu_sys"] + info["used_cpu_user"]


def measure(run, kind, load, keys, seconds, is_impatient=False):
    with tempfile.TemporaryDirectory() as folder:
        server, before = Server(folder), []
        try:
            begin = lambda: before.extend((cpu(server), time.monotonic()))  # noqa: E731
            counts = run(kind, server.port, keys, is_impatient, begin, seconds)
            used, elapsed = cpu(server) - before[0], time.monotonic() - before[1]
        finally:
            server.stop()
    locks, longest = sum(count.locks for count in counts), max(count.longest for count in counts)
    print(f"| {load} | {kind.name} | {locks / elapsed:,.0f} | {longest:.3f} s | {used / locks * 1e6:.0f} µs |", flush=True)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    print("| workers | library | locks/s | longest wait | server time per lock |\n|---|---|---|---|---|")
    loads = {"1, 1 lock": ["a"], "50, 50 locks": [f"a{number}" for number in range(50)], "50, 1 lock": ["a"] * 50}
    for load, keys in loads.items():
        for kind in (Ours, RedisPy, *([PythonRedisLock] if python_redis_lock else [])):
            measure(in_threads, kind, load, keys, seconds)
        for kind in (OursAsyncio, RedisPyAsyncio):
            measure(in_asyncio, kind, load, keys, seconds)
    for run, kind in ((in_threads, Ours), (in_threads, RedisPy), (in_asyncio, OursAsyncio), (in_asyncio, RedisPyAsyncio)):
        measure(run, kind, "50, 1 lock, impatient", ["a"] * 50, seconds, is_impatient=True)
    for kind in (Ours, OursWithOthers, Ours, OursWithOthers):
        measure(in_threads, kind, "1, 1 lock", ["a"], seconds)


if __name__ == "__main__":
    main()
