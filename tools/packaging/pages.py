# SPDX-License-Identifier: MIT
"""Copies the documentation into the folder of an archive: pages.py FOLDER

A link to a file that the archive does not have becomes plain text.
"""

import os
import re
import shutil
import sys
from pathlib import Path

FILES = ("README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "redis.conf", "docs", "examples")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]`]|`[^`\n]*`)*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def main(folder):
    for name in FILES:
        if Path(name).is_dir():
            shutil.copytree(name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules", "target"))
        else:
            shutil.copy(name, folder / name)
    shutil.copy("tools/packaging/INSTALL.md", folder / "INSTALL.md")
    for page in folder.rglob("*.md"):

        def link(match, page=page):
            target = Path(os.path.normpath(page.parent / match[2]))
            return match[0] if target.exists() and target.is_relative_to(folder) else match[1]

        page.write_text(LINK.sub(link, page.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
