#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests the page of locktop in headless Chromium, and takes the screenshots of docs/tools.

    tests/scripts/page.py MODULE LOCKTOP [FOLDER]

MODULE and LOCKTOP are the paths of the module and of the program. With FOLDER, writes page-light.png and page-dark.png there.
Needs redis-server, chromium, and for FOLDER pngquant.
"""

import base64
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

# Keys and owners that would run a script if the page took them for markup.
HOSTILE_KEY = b'<img src=x onerror="document.title=1">'
HOSTILE_OWNER = b"</script><script>document.title=1</script>"

PATIENCE = 30

# The buttons in the table of locks.
ROWS = "[...document.querySelectorAll('#locks button')]"

# Calls of one connection each, and their time in seconds after the start. A connection has its name from the owner.
CALLS = [
    (0.0, "LOCK.ACQUIRE orders web-4:902:11d3 PX 900"),
    (0.3, "LOCK.ACQUIRE orders web-5:1203:9fa2 EX 120 BLOCK 0"),
    (0.6, "LOCK.ACQUIRE stock:4711 web-3:4711:c1f0 EX 600"),
    (0.7, "LOCK.ACQUIRE stock:4711 web-5:1203:9fa2 BLOCK 0"),
    (0.9, "LOCK.ACQUIRE orders web-8:77:e0b1 BLOCK 60000"),
    (1.3, "LOCK.ACQUIRE orders web-9:78:aa10 BLOCK 60000"),
    (1.6, "LOCK.ACQUIRE mail web-2:310:7c42 EX 45"),
    (1.8, "LOCK.ACQUIRE orders web-2:310:7c42 BLOCK 60000"),
    (2.0, "LOCK.ACQUIRE report cron-1:993:51ab EX 300 SHARED"),
    (2.1, "LOCK.ACQUIRE report cron-2:112:0d3e EX 300 SHARED"),
    (2.2, "LOCK.ACQUIRE report etl-1:5512:77aa BLOCK 0"),
    (2.4, "LOCK.ACQUIRE report etl-2:5513:90cd BLOCK 600"),
    (3.4, "LOCK.ACQUIRE mail web-7:31:b7d0 BLOCK 0"),
]
SHOWN_AT = 14.5


class Redis:
    """A connection that sends calls, and reads a reply only on demand."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.replies = self.socket.makefile("rb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else word.encode() for word in words]
        parts = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(parts))

    def call(self, *words):
        """Returns the first line of the reply."""
        self.send(*words)
        line = self.replies.readline().rstrip()
        if line.startswith(b"-"):
            raise AssertionError(line)
        return line


class Browser:
    """Chromium, driven over two pipes with the DevTools protocol."""

    def __init__(self, directory):
        (to_read, self.to), (self.source, from_write) = os.pipe(), os.pipe()

        def pipes():
            os.dup2(to_read, 13)
            os.dup2(from_write, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        words = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        words += [f"--user-data-dir={directory}/profile", "--no-first-run", "about:blank"]
        self.process = subprocess.Popen(
            words, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(from_write)
        self.last, self.received, self.session, self.problems = 0, b"", None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.received:
                some = os.read(self.source, 1 << 16)
                assert some, "Chromium has ended"
                self.received += some
            text, self.received = self.received.split(b"\0", 1)
            reply = json.loads(text)
            if reply.get("id") == self.last:
                assert "error" not in reply, reply
                return reply["result"]
            self.note(reply)

    def note(self, event):
        """Remembers errors, warnings, violations of the policy, and requests to other servers."""
        details = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(details["exceptionDetails"])
        elif event.get("method") == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.problems.append(details["entry"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.dialog = details["message"]
        elif event.get("method") == "Network.requestWillBeSent":
            url = details["request"]["url"]
            if not url.startswith(getattr(self, "own", "about:")):
                self.problems.append(url)

    def open(self, url):
        self.own = url
        self.call("Page.navigate", url=url)

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, script):
        deadline = time.monotonic() + PATIENCE
        while not self.run(script):
            assert time.monotonic() < deadline, f"never true: {script}\n{self.run('document.body.innerText')}"
            time.sleep(0.05)

    def show(self, scheme, width):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        height = 2000
        for _ in range(2):
            self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
            height = self.run("Math.ceil(document.body.getBoundingClientRect().height)")

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def end(self):
        self.process.terminate()
        self.process.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def start_site(locktop, port, *options):
    words = [locktop, "-u", f"redis://127.0.0.1:{port}", "--serve", "127.0.0.1:0", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[-1]


def test_page(browser, url, port):
    admin = Redis(port)
    browser.open(url)
    browser.until("document.querySelectorAll('#locks tbody tr').length === 4")
    assert "orders" in browser.run("document.querySelector('#locks tbody').innerText")
    # The picture has the owners, the locks, and the root causes. The first owner of a lock may still have it.
    roots = json.dumps(["cron-1:993:51ab", "cron-2:112:0d3e", "web-3:4711:c1f0"], separators=(",", ":"))
    found = "[...document.querySelectorAll('#graph .root text')].map(text => text.textContent).sort()"
    browser.until(f"JSON.stringify({found}) === '{roots}'")
    labels = browser.run("[...document.querySelectorAll('#graph g text')].map(text => text.textContent)")
    for label in ["orders", "stock:4711", "web-5:1203:9fa2", "web-3:4711:c1f0"]:
        assert labels.count(label) == 1, labels
    position = "rect.getAttribute('x') + ' ' + rect.getAttribute('y')"
    places = browser.run(f"[...document.querySelectorAll('#graph rect')].map(rect => {position})")
    assert len(set(places)) == len(places), "nodes overlap"
    browser.until("document.querySelector('#log tbody').innerText.includes('timeout')")
    assert "checkout" in browser.run("document.querySelector('#sessions tbody').innerText")
    # A search hides the other locks, and a click sorts and selects.
    browser.run("search = document.getElementById('search'); search.value = 'MAIL'; search.dispatchEvent(new Event('input'))")
    browser.until("document.querySelectorAll('#locks tbody tr').length === 1")
    browser.run("search.value = ''; search.dispatchEvent(new Event('input'))")
    browser.run("document.querySelector('#locks button[data-column=key]').click()")
    browser.until("document.querySelector('#locks tbody td').innerText === 'mail'")
    browser.run("document.querySelector('#locks tbody button').click()")
    browser.until("document.getElementById('chosen').textContent === 'mail'")
    assert browser.run("document.getElementById('break').hidden")
    # Names are text, never markup. The page follows the server without a reload.
    waiter = Redis(port)
    admin.call("LOCK.ACQUIRE", HOSTILE_KEY, HOSTILE_OWNER)
    waiter.send("LOCK.ACQUIRE", HOSTILE_KEY, b"<b>bob</b>", "BLOCK", "0")
    browser.until("document.querySelectorAll('#locks tbody tr').length === 5")
    key = HOSTILE_KEY.decode()
    browser.run(f"{ROWS}.find(button => button.textContent === {json.dumps(key)}).click()")
    browser.until(f"document.getElementById('chosen').textContent === {json.dumps(key)}")
    holders = browser.run("document.getElementById('holders').textContent")
    assert HOSTILE_OWNER.decode() in holders, holders
    assert browser.run("document.querySelectorAll('img, b').length") == 0
    assert browser.run("document.scripts.length") == 1
    assert browser.run("document.title").startswith("locktop: ")
    admin.call("LOCK.BREAK", HOSTILE_KEY)
    waiter.socket.close()
    browser.until("document.querySelectorAll('#locks tbody tr').length === 4")
    # Nothing is wider than a small screen.
    for width in [360, 1280]:
        browser.show("light", width)
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.problems == [], browser.problems


def test_silence(browser, url, site):
    browser.open(url)
    browser.until("document.querySelectorAll('#locks tbody tr').length === 4")
    browser.run("slow = AbortSignal.timeout.bind(AbortSignal); AbortSignal.timeout = () => slow(300)")
    notice = "document.getElementById('notice').textContent"
    site.send_signal(signal.SIGSTOP)
    try:
        browser.until(f"{notice} === 'no answer in time from locktop; the page shows an old state'")
    finally:
        site.send_signal(signal.SIGCONT)
    browser.until(f"{notice} === ''")
    assert browser.problems == [], browser.problems


def test_break(browser, url, port):
    browser.open(url)
    browser.until("document.querySelectorAll('#locks tbody tr').length === 4")
    browser.run(f"{ROWS}.find(button => button.textContent === 'stock:4711').click()")
    browser.until("document.getElementById('chosen').textContent === 'stock:4711' && !document.getElementById('break').hidden")
    browser.run("document.getElementById('break').click()")
    assert browser.run("document.getElementById('confirm').open")
    type_in = "input = document.getElementById('confirm-input'); input.value = '%s'; input.dispatchEvent(new Event('input'))"
    browser.run(type_in % "stock")
    assert browser.run("document.getElementById('confirm-yes').disabled")
    browser.run(type_in % "stock:4711")
    assert not browser.run("document.getElementById('confirm-yes').disabled")
    # Remembers the message instead of showing a dialog, which would stop the page.
    browser.run("window.alert = text => { window.told = text; }")
    browser.run("document.getElementById('confirm-yes').click()")
    browser.until("window.told")
    assert browser.run("told.trim()") == "stock:4711 was broken; holders that lost it: 1"
    browser.until("!document.querySelector('#locks').innerText.includes('stock:4711')")
    assert browser.problems == [], browser.problems


def main():
    module, locktop = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
    folder = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
    port = free_port()
    started, clients = [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        try:
            words = ["redis-server", "--port", str(port), "--dir", directory, "--save", "", "--loadmodule", module]
            started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    admin = Redis(port)
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline, "the server does not start"
                    time.sleep(0.05)
            admin.call("CONFIG", "SET", "lock.events", "yes")
            admin.call("CONFIG", "SET", "lock.log-waits-over", "100")
            for name in ["checkout-1", "checkout-2", "mailer"]:
                clients.append(Redis(port))
                clients[-1].call("LOCK.SESSION", "OPEN", "NEW", "1", "TTL", "600000", "NAME", name)
            begin = time.monotonic()
            site, url = start_site(locktop, port)
            started.append(site)
            browser = Browser(directory)
            try:
                browser.open(url)
                for at, call in CALLS:
                    time.sleep(max(0, begin + at - time.monotonic()))
                    clients.append(Redis(port))
                    clients[-1].call("CLIENT", "SETNAME", call.split()[2].split(":")[0])
                    clients[-1].send(*call.split())
                browser.show("light", 1280)
                if folder:
                    time.sleep(max(0, begin + SHOWN_AT - time.monotonic()))
                    for scheme in ["light", "dark"]:
                        browser.show(scheme, 1280)
                        picture = folder / f"page-{scheme}.png"
                        browser.screenshot(picture)
                        subprocess.run(["pngquant", "--force", "--ext", ".png", "--speed", "1", str(picture)], check=True)
                test_page(browser, url, port)
                test_silence(browser, url, site)
                site, url = start_site(locktop, port, "--allow-break")
                started.append(site)
                test_break(browser, url, port)
            finally:
                browser.end()
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()
    print("the page works in Chromium")


if __name__ == "__main__":
    main()
