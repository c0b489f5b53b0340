# SPDX-License-Identifier: MIT
"""Checks that every place has the version of Cargo.toml: version.py; version.py 0.2.0 sets it everywhere.

Tags of Go modules, Debian packages and archives take the version from Cargo.toml when they are made.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = r"\d+\.\d+\.\d+"
# The files, and what precedes the version in them. The first place is the source of all others.
PLACES = [
    ("Cargo.toml", r'^\[workspace\.package\]\nversion = "'),
    # Crates with a workspace of their own have the version 0.0.0.
    ("Cargo.lock", r'^name = "redis-lock[\w-]*"\nversion = "'),
    ("clients/rust/bench/Cargo.lock", r'^name = "redis-lock-client"\nversion = "'),
    ("clients/rust/README.md", r"redis-lock-client-"),
    ("clients/python/pyproject.toml", r'^version = "'),
    ("clients/python/README.md", r"redis_lock_client-"),
    ("clients/node/package*.json", r'"name": "redis-lock-client",\n +"version": "'),
    ("clients/node/README.md", r"redis-lock-client-"),
    ("clients/java/pom.xml", r"<artifactId>redis-lock</artifactId>\n +<version>"),
    ("clients/java/*/pom.xml", r"<artifactId>redis-lock</artifactId>\n +<version>"),
    ("clients/java/README.md", r"<artifactId>redis-lock-client</artifactId>\n +<version>"),
    ("clients/go/README.md", r"clients/go@v"),
    ("clients/go/gocron/go.mod", r"clients/go v"),
]


def main(wanted=None):
    wrong, write = [], wanted is not None
    if write and not re.fullmatch(VERSION, wanted):
        sys.exit(f"{wanted} is not a version like 0.2.0")
    for files, before in PLACES:
        place = re.compile(f"({before})({VERSION})", re.MULTILINE)
        paths = sorted(ROOT.glob(files))
        wrong += [] if paths else [f"{files} is missing"]
        for path in paths:
            text = path.read_text()
            found = {match[2] for match in place.finditer(text)}
            wanted = wanted or "".join(found)
            if write:
                path.write_text(place.sub(rf"\g<1>{wanted}", text))
            if not found or not write and found != {wanted}:
                wrong.append(f"{path.relative_to(ROOT)} has {', '.join(found) or 'no version'}, not {wanted}")
    if not re.search(rf"^## {re.escape(wanted)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        wrong.append(f"CHANGELOG.md has no section {wanted}")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
