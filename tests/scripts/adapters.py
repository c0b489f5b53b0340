# SPDX-License-Identifier: MIT
"""Installs the adapters of target/dist/clients in new projects, and runs the programs of tests/adapters with them.

`make package-java package-go` builds them. Each program acquires and releases at least one lock.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import first_use

ROOT = first_use.ROOT
CLIENTS = ROOT / "target/dist/clients"
PROGRAMS = ROOT / "tests/adapters"
LETTUCE = "io.lettuce:lettuce-core:7.7.0.RELEASE"
# The adapter of each program, and the libraries that a user of it has.
JAVA = {
    "micrometer": ("redis-lock-micrometer", LETTUCE, "io.micrometer:micrometer-core:1.16.1"),
    "redisson": ("redis-lock-redisson", "org.redisson:redisson:4.7.0"),
    "shedlock": ("redis-lock-shedlock", LETTUCE, "net.javacrumbs.shedlock:shedlock-core:6.10.0"),
    "spring": ("redis-lock-spring", LETTUCE, "org.springframework.integration:spring-integration-core:7.0.1"),
    "spring-boot": (
        "redis-lock-spring-boot-starter",
        "org.springframework.boot:spring-boot-starter-data-redis:4.0.1",
    ),
    "vertx": ("redis-lock-vertx", "io.lettuce:lettuce-core:6.5.5.RELEASE", "io.vertx:vertx-core:4.5.14"),
}
# The versions of the adapters come from the BOM.
PARENT = """<packaging>pom</packaging>
  <modules>{modules}</modules>
  <repositories>
    <repository>
      <id>dist</id>
      <url>file://{clients}/maven</url>
    </repository>
  </repositories>
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>io.github.redis-lock</groupId>
        <artifactId>redis-lock-bom</artifactId>
        <version>{version}</version>
        <type>pom</type>
        <scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>"""
CHILD = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <parent>
    <groupId>project</groupId>
    <artifactId>project</artifactId>
    <version>1</version>
  </parent>
  <artifactId>{name}</artifactId>
  <dependencies>
    <dependency>
      <groupId>io.github.redis-lock</groupId>
      <artifactId>{adapter}</artifactId>
    </dependency>{libraries}
  </dependencies>
  <build>
    <sourceDirectory>{programs}/{name}</sourceDirectory>
  </build>
</project>
"""
LIBRARY = """
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""


def run(command, folder, **environment):
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=first_use.LIMIT,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


def java(folder, version):
    """Builds all programs. Returns the command that runs each."""
    for name, (adapter, *libraries) in JAVA.items():
        (folder / name).mkdir()
        text = "".join(LIBRARY.format(*library.split(":")) for library in libraries)
        (folder / name / "pom.xml").write_text(CHILD.format(name=name, adapter=adapter, libraries=text, programs=PROGRAMS))
    modules = "".join(f"<module>{name}</module>" for name in JAVA)
    parent = PARENT.format(modules=modules, clients=CLIENTS, version=version)
    (folder / "pom.xml").write_text(first_use.MAVEN.format(parent))
    command = ["mvn", "-B", "-q", "compile", "dependency:build-classpath", "-Dmdep.outputFile=target/path"]
    run(command, folder, MAVEN_OPTS=f"{os.environ.get('MAVEN_OPTS', '')} {first_use.maven_repository(folder)}")
    commands = {}
    for name in JAVA:
        target = folder / name / "target"
        path = f"{target}/classes:{(target / 'path').read_text()}"
        assert "/dist/" not in path and f"{folder}/m2/io/github/redis-lock/" in path, path
        commands[name] = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path, "Main"]
    return commands


def go(folder, version):
    """Builds the program with modules as a proxy serves them. Returns the command that runs it."""
    source, cache = PROGRAMS / "gocron/main.go", run(["go", "env", "GOMODCACHE"], folder).strip()
    environment = {
        # The modules of the project come from target/dist, and others from the cache of this machine, if it has them.
        "GOPROXY": f"file://{CLIENTS}/go,file://{cache}/cache/download,{run(['go', 'env', 'GOPROXY'], folder).strip()}",
        "GONOSUMDB": "github.com/redis-lock",
        "GOMODCACHE": f"{folder}/cache",
        "GOFLAGS": "-modcacherw -mod=mod",
    }
    (folder / "main.go").write_text(source.read_text())
    run(["go", "mod", "init", "project"], folder)
    run(["go", "get", f"github.com/redis-lock/redis-lock/clients/go/gocron@v{version}"], folder, **environment)
    run(["go", "build", "-o", "program", "."], folder, **environment)
    return {"gocron": [folder / "program"]}


def main():
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    with tempfile.TemporaryDirectory() as temporary:
        folders = Path(temporary, "java"), Path(temporary, "go"), Path(temporary, "server")
        for folder in folders:
            folder.mkdir()
        commands = {**java(folders[0], version), **go(folders[1], version)}
        server, port = first_use.start_server(folders[2])
        try:
            for name, command in commands.items():
                run(["redis-cli", "-p", str(port), "CONFIG", "RESETSTAT"], folders[2])
                printed = run([*command, f"redis://127.0.0.1:{port}"], folders[2])
                calls = run(["redis-cli", "-p", str(port), "INFO", "commandstats"], folders[2])
                for call in ("acquire", "release"):
                    assert f"cmdstat_lock.{call}:" in calls, f"{name} calls no LOCK.{call.upper()}\n{printed}"
                print(f"adapter {name}: {printed.strip().splitlines()[-1]}")
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
