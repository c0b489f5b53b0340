# SPDX-License-Identifier: MIT
"""Checks that the packages in clients/ have the names of the table in clients/README.md."""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "clients"


def field(path, pattern):
    """The first match of this pattern in a file."""
    found = re.search(pattern, (CLIENTS / path).read_text(), re.MULTILINE)
    return found.group(1) if found else None


def main():
    pom, core = "java/pom.xml", "java/core/pom.xml"
    group, artifact = field(pom, "<groupId>(.*)</groupId>"), field(core, "</parent>[^§]*?<artifactId>(.*)</artifactId>")
    manifests = {
        "Python": field("python/pyproject.toml", '^name = "(.*)"'),
        "Node": json.loads((CLIENTS / "node/package.json").read_text())["name"],
        "Rust": field("rust/Cargo.toml", '^name = "(.*)"'),
        "Java": f"{group}:{artifact}",
        "Go": field("go/go.mod", "^module (.*)"),
    }
    rows = re.findall(r"^\| \[(\w+)\]\(.*?\) \| .*? \| `(.*?)` \| `.*?` \|$", (CLIENTS / "README.md").read_text(), re.MULTILINE)
    wrong = [
        f"{language}: the package is {manifests[language]}, not {name}"
        for language, name in rows
        if manifests[language] != name
    ]
    if len(rows) != len(manifests):
        wrong.append("a language is missing in the table")
    # Only the driver and the benchmark are not published.
    artifacts = {field(path, "</parent>[^§]*?<artifactId>(.*)</artifactId>") for path in CLIENTS.glob("java/*/pom.xml")}
    readme, bom = (CLIENTS / "README.md").read_text(), (CLIENTS / "java/bom/pom.xml").read_text()
    for name in sorted(artifacts - {"redis-lock-driver", "redis-lock-bench"}):
        wrong += [
            f"Java: {name} is not in {place}"
            for place, text in (("clients/README.md", readme), ("the BOM", bom))
            if not re.search(rf"\b{name}(`|</artifactId>)", text)
        ]
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
