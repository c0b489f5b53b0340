# SPDX-License-Identifier: MIT
"""The examples of the README run as they are, except for the port. Each option is documented."""

import inspect
import re
from pathlib import Path

from redis_lock_client import Locks

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_examples_run(server, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 7
    stored, shipped = [], []
    names = {"ship": lambda: shipped.append(1), "undo": lambda: shipped.clear(), "store": stored.append}
    for block in blocks:
        code = re.sub(r"Redis\(\)", f"Redis(port={server.port})", block)
        exec(compile(code, f"README, from {block[:30]!r}", "exec"), names)
    assert shipped == [1] and stored[0] > 0 and server.admin.get("result") == "42"
    assert "Event(label='jobs', event='waited', outcome='cancelled'" in capsys.readouterr().out
    left = server.admin.keys("*")
    assert [key for key in left if not key.startswith(("lock_request:", "redisson_lock_token:"))] == ["result"]
    names["compat"].locks_of(names["client"]).close()


def test_each_option_is_documented():
    text = README.read_text()
    for options in (inspect.signature(Locks.lock).parameters, inspect.signature(Locks).parameters):
        for name in options:
            assert name in ("self", "keys", "client") or f"\n| `{name}` |" in text, name
