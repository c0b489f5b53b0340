# SPDX-License-Identifier: MIT
"""dogpile.cache's tests for the mutexes of anybody's backend, with ours. It finds the backend by its entry point."""

import os

from dogpile.testing.fixtures import _GenericMutexTestSuite


class TestMutex(_GenericMutexTestSuite):
    backend = "redis_lock"
    config_args = {"arguments": {"port": int(os.environ["PORT"])}}
