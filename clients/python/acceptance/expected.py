# SPDX-License-Identifier: MIT
"""A pytest plugin that compares a foreign suite with a file: the number of its tests, and the expected failures with reasons.

The first line is `tests: N`. Each other line is `name: reason`. A named test that passes is a failure. An unknown name or
another number of tests is an error.
"""

import os
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    lines = Path(os.environ["EXPECTED"]).read_text().splitlines()
    entries = [line.split(": ", 1) for line in lines if line and not line.startswith("#")]
    (_, number), *left_out = entries
    if len(items) != int(number):
        raise pytest.UsageError(f"{len(items)} tests instead of {number}")
    by_name = {item.nodeid: item for item in items}
    for name, reason in left_out:
        if name not in by_name:
            raise pytest.UsageError(f"there is no test {name}")
        by_name[name].add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_runtest_logreport(report):
    # A skipped test did not pass. Only `xfail` may have a reason.
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
