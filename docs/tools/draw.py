#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws locktop.svg: a screen of `locktop` with a server that has holders and waiters.

Usage: draw.py MODULE LOCKTOP, with the paths of the module and of the program. Needs redis-server, redis-cli, tmux and the Python
package rich.
"""

import io
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from rich.console import Console
from rich.text import Text

PORT = "7455"
COLUMNS, ROWS = 118, 24

# Each call, and its time in seconds after the start. With lock.events the screen shows how long each lock has been held.
CALLS = [
    (0.0, "CONFIG SET lock.events yes"),
    (0.1, "LOCK.ACQUIRE orders web-4:902:11d3 PX 900"),
    (0.5, "LOCK.ACQUIRE orders web-5:1203:9fa2 EX 120 BLOCK 0"),
    (1.0, "LOCK.ACQUIRE stock:4711 web-3:4711:c1f0 EX 600"),
    (1.1, "LOCK.ACQUIRE stock:4711 web-5:1203:9fa2 BLOCK 0"),
    (1.5, "LOCK.ACQUIRE orders web-8:77:e0b1 BLOCK 60000"),
    (2.5, "LOCK.ACQUIRE orders web-9:78:aa10 BLOCK 60000"),
    (3.0, "LOCK.ACQUIRE mail web-2:310:7c42 EX 45"),
    (3.5, "LOCK.ACQUIRE orders web-2:310:7c42 BLOCK 60000"),
    (4.0, "LOCK.ACQUIRE report cron-1:993:51ab EX 300 SHARED"),
    (4.1, "LOCK.ACQUIRE report cron-2:112:0d3e EX 300 SHARED"),
    (4.2, "LOCK.ACQUIRE report etl-1:5512:77aa BLOCK 0"),
    (12.0, "LOCK.ACQUIRE mail web-7:31:b7d0 BLOCK 0"),
]
SHOWN_AT = 14.5


def main():
    module, locktop = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:])
    directory = tempfile.mkdtemp()
    tmux = ["tmux", "-f", "/dev/null", "-S", f"{directory}/tmux"]
    started = []
    try:
        server = ["redis-server", "--port", PORT, "--dir", directory, "--save", "", "--loadmodule", module]
        started.append(subprocess.Popen(server, stdout=subprocess.DEVNULL))
        time.sleep(1)
        start = time.monotonic()
        for at, call in CALLS:
            time.sleep(max(0, start + at - time.monotonic()))
            words = ["redis-cli", "-p", PORT, *call.split()]
            started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
        command = f"{locktop} -u redis://127.0.0.1:{PORT}"
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        subprocess.run([*tmux, "new-session", "-d", *size, f"env COLORTERM= TERM=xterm-256color {command}"], check=True)
        time.sleep(1)
        subprocess.run([*tmux, "send-keys", "Down"], check=True)
        time.sleep(max(0.5, start + SHOWN_AT - time.monotonic()))
        screen = subprocess.run([*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True).stdout
        subprocess.run([*tmux, "kill-server"], check=True)
    finally:
        for process in reversed(started):
            process.terminate()
        shutil.rmtree(directory, ignore_errors=True)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen.rstrip("\n")))
    picture = console.export_svg(title="locktop")
    # Uses the reader's own font, so that the picture loads nothing from the network.
    picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    picture = re.sub(r"Fira Code, monospace", "monospace", picture)
    pathlib.Path(__file__).with_name("locktop.svg").write_text(picture)


if __name__ == "__main__":
    main()
