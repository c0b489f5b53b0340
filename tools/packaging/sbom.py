# SPDX-License-Identifier: MIT
"""Prints the crates that are compiled into the module and the tools, as a CycloneDX document."""

import datetime
import json
import os
import subprocess


def metadata():
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform"]
    host = next(
        line.removeprefix("host: ")
        for line in subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        if line.startswith("host: ")
    )
    return json.loads(subprocess.run([*command, host], check=True, stdout=subprocess.PIPE).stdout)


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, kind):
    found = {
        "type": kind,
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
        "licenses": [{"expression": (package["license"] or "NOASSERTION").replace("/", " OR ")}],
    }
    return {key: value for key, value in found.items() if key != "purl" or package["source"]}


def compiled():
    """The names and versions of the crates in the programs: no build script, no macro, no test."""
    tree = ["cargo", "tree", "--locked", "--package", "redis-lock", "--package", "redis-lock-tools"]
    options = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]
    listed = subprocess.run([*tree, *options], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {tuple(line.split(" v")[:2]) for line in (line.split(" (")[0] for line in listed.splitlines()) if line}


def main():
    found = metadata()
    kept = compiled()
    packages = {package["id"]: package for package in found["packages"] if (package["name"], package["version"]) in kept}
    edges = {
        node["id"]: sorted(
            dependency["pkg"]
            for dependency in node["deps"]
            if dependency["pkg"] in packages and any(kind["kind"] is None for kind in dependency["dep_kinds"])
        )
        for node in found["resolve"]["nodes"]
        if node["id"] in packages
    }
    named = {package["name"]: package for package in packages.values()}
    module, tools = named["redis-lock"], named["redis-lock-tools"]
    moment = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": moment.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": component(module, "library")},
        "components": [component(tools, "application")]
        + [component(packages[key], "library") for key in sorted(edges) if packages[key] not in (module, tools)],
        "dependencies": [
            {"ref": reference(packages[key]), "dependsOn": [reference(packages[other]) for other in edges[key]]}
            for key in sorted(edges)
        ],
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
