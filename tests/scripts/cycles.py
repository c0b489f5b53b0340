#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails if source files of the module have cyclic dependencies, or if a file adds inherent methods to a type of another file.
Such methods could use the type's private parts outside its file. A type of a `mod.rs` may have methods in the files of its
folder, which see its private parts in any case.

A file depends on each file that defines an item it names. Re-exports are resolved. A `use` or a path in the code determines the
module. Tests do not count.
"""

import re
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"
TESTS = {"model_tests", "scenarios"}
ITEM = re.compile(
    r"^(?:pub(?:\([a-z ]+\))? )?(?:unsafe )?(?:const )?(?:async )?(?:extern \"C\" )?"
    r"(?:fn|struct|enum|trait|type|const|static|macro_rules!|mod|union)\s+(\w+)",
    re.M,
)
IMPL = re.compile(r"^impl(?:<[^{]*?>)?\s+([\w:]+)(?:<[^{]*>)?\s*(?:where[^{]*)?\{", re.M)


def strip(text):
    """Removes comments, strings, and the tests at the end."""
    text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    # The scope of a visibility is no dependency.
    text = re.sub(r"\bpub\(in [^)]*\)", "pub", text)
    text = re.sub(r'\bc?"(?:\\.|[^"\\])*"', '""', text)
    return re.split(r"^#\[cfg\(test\)\]\nmod tests", text, flags=re.M)[0]


def expand(tree, prefix=()):
    """The paths of a `use` and their local names."""
    tree = tree.strip()
    depth, parts, part = 0, [], ""
    for char in tree:
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    parts.append(part)
    for part in (part.strip() for part in parts if part.strip()):
        if "{" in part:
            head, rest = part.split("{", 1)
            path = tuple(head.strip().removesuffix("::").split("::")) if head.strip() else ()
            yield from expand(rest.rsplit("}", 1)[0], prefix + path)
        else:
            path, _, name = part.partition(" as ")
            full = prefix + tuple(path.strip().split("::"))
            if full[-1] == "self":
                full = full[:-1]
            yield full, (name.strip() or full[-1])


class File:
    def __init__(self, path):
        self.path = path
        relative = path.relative_to(SRC).with_suffix("")
        parts = relative.parts
        self.module = () if parts == ("lib",) else parts[:-1] if parts[-1] == "mod" else parts
        self.text = strip(path.read_text())
        self.items = set(ITEM.findall(self.text))
        self.uses, self.exports = {}, {}
        for exported, tree in re.findall(r"^\s*(pub(?:\([a-z ]+\))? )?use ([^;]+);", self.text, flags=re.M):
            for full, name in expand(tree):
                (self.exports if exported else self.uses)[name] = full


def load():
    files = [File(path) for path in sorted(SRC.rglob("*.rs")) if not TESTS & set(path.parts)]
    return {file.module: file for file in files if file.module[-1:] not in (("verify",), ("scenarios",))}


def absolute(file, path):
    if path[0] == "crate":
        return path[1:]
    if path[0] == "self":
        return file.module + path[1:]
    if path[0] == "super":
        base = file.module
        while path and path[0] == "super":
            base, path = base[:-1], path[1:]
        return base + path
    return None


def resolve(files, path, seen=()):
    """The module whose file defines the item at this path."""
    for cut in range(len(path), -1, -1):
        module = path[:cut]
        if module not in files:
            continue
        file, rest = files[module], path[cut:]
        if rest and rest[0] in file.exports and (module, rest[0]) not in seen:
            target = file.exports[rest[0]]
            full = absolute(file, target) or file.module + target
            return resolve(files, full + rest[1:], seen + ((module, rest[0]),))
        return module
    return None


def dependencies(files):
    graph = {}
    for module, file in files.items():
        found = set()
        body = re.sub(r"^\s*(?:pub(?:\([a-z ]+\))? )?use [^;]+;", "", file.text, flags=re.M)
        paths = [full for full in file.uses.values()]
        paths += [tuple(path.split("::")) for path in re.findall(r"\b((?:\w+::)+\w+)", body)]
        for path in paths:
            full = absolute(file, path)
            if full is None and path[0] in file.uses and len(path) > 1:
                full = absolute(file, file.uses[path[0]] + path[1:])
            if full is None and module + path[:1] in files:
                full = module + path
            target = resolve(files, full) if full is not None else None
            # A directory's mod.rs lists its files, which may use its items.
            if target is not None and target != module:
                found.add(target)
        graph[module] = found
    return graph


def cycles(graph):
    """The strongly connected components with more than one file (Tarjan)."""
    index, low, stack, found = {}, {}, [], []
    sys.setrecursionlimit(10_000)

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = []
            while not part or part[-1] != node:
                part.append(stack.pop())
            if len(part) > 1:
                found.append(sorted(part))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def main():
    files = load()
    graph = dependencies(files)
    wrong = []
    for part in cycles(graph):
        wrong.append("These files have cyclic dependencies:")
        for module in part:
            inside = ", ".join("/".join(other) or "lib" for other in sorted(graph[module]) if other in part)
            wrong.append(f"  {files[module].path.relative_to(SRC)} needs {inside}")
    for file in files.values():
        for name in IMPL.findall(file.text):
            name = name.split("::")[-1]
            folders = (files.get(file.module[:depth]) for depth in range(1, len(file.module)))
            if name not in file.items and not any(folder and name in folder.items for folder in folders):
                wrong.append(f"{file.path.relative_to(SRC)} adds methods to {name}, a type of another file")
    print("\n".join(wrong), end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
