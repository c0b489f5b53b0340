# SPDX-License-Identifier: MIT
"""CPython's tests of `threading.Lock` and `threading.RLock`, with the locks of this package. Each lock has its own key."""

import itertools
import os

import redis
from test import lock_tests

from redis_lock_client import Locks, threads

number = itertools.count()


def setUpModule():
    global locks
    locks = Locks(redis.Redis(port=int(os.environ["PORT"])))


def tearDownModule():
    locks.close()


class LockTests(lock_tests.LockTests):
    @staticmethod
    def locktype():
        return threads.Lock(locks, f"cpython:{next(number)}")


class RLockTests(lock_tests.RLockTests):
    @staticmethod
    def locktype():
        return threads.RLock(locks, f"cpython:{next(number)}")
