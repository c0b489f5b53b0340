# SPDX-License-Identifier: MIT
"""Prints the lines of code of each client package, without comments, tests and adapters. Fails if one has more than recorded.

`clients/README.md` has the records, and the reasons for them. A lower count is recorded by hand.
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JAVA = "clients/java/core/src/main/java/io/github/redislock"
PACKAGES = {
    "Python": ("clients/python/src/redis_lock_client/*.py", {"compat.py", "dogpile.py", "tooz.py", "threads.py"}),
    "Go": ("clients/go/*.go", {"adapters.go"}),
    "Node": ("clients/node/src/*.ts", {"adapters.ts", "verrou.ts"}),
    "Java": (f"{JAVA}/*.java", {"RedissonConnector.java"}),
    "Rust": ("clients/rust/src/**/*.rs", set()),
    "lockrun": ("tools/src/bin/lockrun/*.rs", set()),
}
BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def of_python(text):
    """Lines with a token, except for docstrings."""
    documents = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            documents |= set(range(body[0].lineno, body[0].end_lineno + 1))
    tokens = (token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in BLANK)
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - documents)


def of_others(text):
    """Lines that are neither blank nor comments, before the unit tests of a Rust file."""
    code = text.partition("#[cfg(test)]\nmod tests {")[0]
    code = re.sub(r"/\*.*?\*/", lambda found: "\n" * found.group().count("\n"), code, flags=re.S)
    return sum(1 for line in code.splitlines() if line.strip() and not line.strip().startswith("//"))


def main():
    records = dict(re.findall(r"^\| (\w+) \| ([\d,]+) \|", (ROOT / "clients/README.md").read_text(), re.M))
    grown = []
    for package, (files, adapters) in PACKAGES.items():
        paths = [path for path in ROOT.glob(files) if path.name not in adapters and not path.stem.endswith("_test")]
        count = sum((of_python if path.suffix == ".py" else of_others)(path.read_text()) for path in paths)
        record = int(records.get(package, "0").replace(",", ""))
        print(f"{package}: {count:,} lines of code, recorded {record:,}")
        if not 0 < count <= record:
            grown.append(package)
    if grown:
        sys.exit(f"More lines of code than clients/README.md records: {', '.join(grown)}")


if __name__ == "__main__":
    main()
