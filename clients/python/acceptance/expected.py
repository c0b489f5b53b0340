# SPDX-License-Identifier: MIT
"""A pytest plugin that holds a suite of others to a file: how many tests there are, and which fail for what reason.

The first line is `tests: N`. Each other line is `name: reason`. A test of these that passes is a failure, and so are a name
that is not there and another number of tests.
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
        raise pytest.UsageError(f"{len(items)} tests, and there are to be {number}")
    by_name = {item.nodeid: item for item in items}
    for name, reason in left_out:
        if name not in by_name:
            raise pytest.UsageError(f"{name} is left out, but there is no such test")
        by_name[name].add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_runtest_logreport(report):
    # What is skipped did not pass: only `xfail` may have a reason.
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
