# SPDX-License-Identifier: MIT
"""dogpile.cache's tests for the mutexes of a backend, with those of this package. Its entry point names the backend."""

import os

from dogpile.testing.fixtures import _GenericMutexTestSuite


class TestMutex(_GenericMutexTestSuite):
    backend = "redis_lock"
    config_args = {"arguments": {"port": int(os.environ["PORT"])}}
