# SPDX-License-Identifier: MIT
"""Does what a new user does: installs a package of clients/ in an empty project, and runs the first program of its README.

    first_use.py python|node|java|rust|go

Everything runs as written there, except for the port of the server. The project is beside this repository, which is called
redis-lock. The first program of a README prints something. With PREBUILT=1, the package in target/dist is not built again.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE = os.environ.get("REDIS_LOCK_MODULE") or ROOT / "target/release/libredis_lock.so"
# The longest time for a download and a build.
LIMIT = 600


class Language:
    """How to make an empty project, where the first program goes, how to run it, and how it says where the server is."""

    def __init__(self, tag, file, run, port, new, build=None):
        self.tag, self.file, self.run, self.new = tag, file, run, new
        self.default, self.given = port
        # The tag of the lines of a file of the build, and the file with a place for them.
        self.build = build


MAVEN = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>project</groupId>
  <artifactId>project</artifactId>
  <version>1</version>
  <properties>
    <maven.compiler.release>17</maven.compiler.release>
  </properties>
  <build>
    <plugins>
      <plugin>
        <artifactId>maven-compiler-plugin</artifactId>
        <version>3.13.0</version>
      </plugin>
    </plugins>
  </build>
{}
</project>
"""
RUN_JAVA = "mvn -B -q compile dependency:build-classpath -Dmdep.outputFile=path && java -cp target/classes:$(cat path) Main"
URL = ("redis://127.0.0.1:6379", "redis://127.0.0.1:PORT")
LANGUAGES = {
    "python": Language("python", "main.py", "python main.py", ("Redis()", "Redis(port=PORT)"), "python3 -m venv venv"),
    "node": Language("js", "main.mjs", "node main.mjs", ("new Redis()", "new Redis(PORT)"), "npm init --yes >new.log"),
    "go": Language("go", "main.go", "go run .", ("127.0.0.1:6379", "127.0.0.1:PORT"), "go mod init project"),
    "rust": Language("rust", "src/main.rs", "cargo run --quiet", URL, "cargo init --quiet --name project"),
    "java": Language(
        "java", "src/main/java/Main.java", RUN_JAVA, URL, "mkdir -p src/main/java", ("xml", "pom.xml", MAVEN)
    ),
}


def first(text, tag):
    """The first block of code with this tag."""
    block = re.search(rf"^```{tag}[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert block, f"no {tag} in the README"
    return block.group(1)


def maven_repository(folder):
    """A local repository with the downloads of this machine, but without artifacts of this project."""
    source, here = Path.home() / ".m2/repository", Path(folder, "m2")
    for name in ("io", "github", "redis-lock"):
        here.mkdir()
        for entry in source.iterdir() if source.exists() else ():
            if entry.name != name:
                (here / entry.name).symlink_to(entry)
        source, here = source / name, here / name
    return f"-Dmaven.repo.local={folder}/m2"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(folder):
    port = free_port()
    words = ["redis-server", "--port", str(port), "--save", "", "--dir", str(folder), "--loadmodule", str(MODULE)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server, port
        time.sleep(0.02)
    raise SystemExit("the server does not start")


def main():
    name = sys.argv[1]
    language, readme = LANGUAGES[name], (ROOT / "clients" / name / "README.md").read_text()
    program = first(readme, language.tag)
    if name == "python":
        assert program == first((ROOT / "README.md").read_text(), "python"), "README.md has another program"
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        project.mkdir()
        Path(folder, "redis-lock").symlink_to(ROOT)
        environment = {**os.environ, "PATH": f"{project}/venv/bin:{os.environ['PATH']}"}
        if name == "java":
            environment["MAVEN_OPTS"] = f"{os.environ.get('MAVEN_OPTS', '')} {maven_repository(folder)}"

        def sh(commands):
            done = subprocess.run(
                ["sh", "-euc", commands],
                cwd=project,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT,
            )
            assert done.returncode == 0, f"{commands}\n{done.stdout}"
            return done.stdout

        server, port = start_server(folder)
        try:
            sh(language.new)
            assert language.default in program, f"{language.default} is missing in the first program of {name}"
            program = program.replace(language.default, language.given.replace("PORT", str(port)))
            (project / language.file).write_text(program)
            if language.build:
                tag, file, text = language.build
                (project / file).write_text(text.format(first(readme, tag)))
            install = first(readme, "sh")
            sh(re.sub("^make .*", "", install, flags=re.MULTILINE) if os.environ.get("PREBUILT") == "1" else install)
            printed = sh(language.run)
            assert printed, "the first program prints nothing"
            print(f"first use of {name}: {printed.strip()}")
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    if not shutil.which("redis-server"):
        raise SystemExit("redis-server is missing")
    main()
