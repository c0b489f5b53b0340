# SPDX-License-Identifier: MIT
"""How this compares with redis-py's own Lock when many want one lock: `bench.py [SECONDS]`, with a server of its own.

Each of N threads takes the lock, gives it back, and begins again. Said are locks a second, the longest that a thread waited, and
the server's CPU time for a lock. Everything shares this machine's cores: read ratios, not numbers.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))

from conftest import Server  # noqa: E402

from redis_lock_client import Locks  # noqa: E402


class Ours:
    name = "redis-lock"

    def __init__(self, port):
        self.locks = Locks(redis.Redis(port=port))
        self.lock = self.locks.lock("bench", lease=30)

    def once(self):
        self.lock.acquire().release()

    def close(self):
        self.locks.close()


class OursBlocking(Ours):
    name = "redis-lock, own_connection"

    def __init__(self, port):
        super().__init__(port)
        self.lock = self.locks.lock("bench", lease=30, own_connection=True)


class RedisPy:
    name = "redis-py, sleep=0.1"
    sleep = 0.1

    def __init__(self, port):
        # Its default of 100 connections is too few for 200 threads: they fail, and leave the lock to its lease.
        self.client = redis.Redis(port=port, max_connections=1000)
        self.lock = self.client.lock("bench", timeout=30, sleep=self.sleep)

    def once(self):
        self.lock.acquire()
        self.lock.release()

    def close(self):
        self.client.close()


class RedisPyOften(RedisPy):
    name = "redis-py, sleep=0.01"
    sleep = 0.01


def cpu(server):
    info = server.admin.info("cpu")
    return info["used_cpu_sys"] + info["used_cpu_user"]


def measure(kind, threads, seconds):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        subject = kind(server.port)
        counts, longest, over = [0] * threads, [0.0] * threads, threading.Event()
        failures = []
        ready = threading.Barrier(threads + 1)

        def work(number):
            # Connections are made before.
            subject.once()
            ready.wait()
            while not over.is_set():
                started = time.monotonic()
                try:
                    subject.once()
                except Exception as error:
                    failures.append(error)
                    return
                longest[number] = max(longest[number], time.monotonic() - started)
                counts[number] += 1

        workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
        for worker in workers:
            worker.start()
        ready.wait(60)
        before, started = cpu(server), time.monotonic()
        time.sleep(seconds)
        total, used, elapsed = sum(counts), cpu(server) - before, time.monotonic() - started
        over.set()
        for worker in workers:
            worker.join(60)
        alive = sum(worker.is_alive() for worker in workers)
        subject.close()
        server.stop()
    if failures or alive:
        # Who fails leaves the lock to its lease: the numbers would be of something else.
        sys.exit(f"{kind.name}, {threads} threads: {len(failures)} failed, {alive} hang: {failures[:1]}")
    print(
        f"{threads:4} threads  {kind.name:27} {total / elapsed:8.0f} locks/s  longest {max(longest):6.2f} s"
        f"  least {min(counts):5} locks of a thread  {used / max(1, total) * 1e6:7.0f} us of server CPU a lock",
        flush=True,
    )


if __name__ == "__main__":
    for number in (2, 50, 200):
        for each in (RedisPy, RedisPyOften, Ours, OursBlocking):
            measure(each, number, float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
