#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts sentences that a reader has to read twice, and fails if an area of the project has more than recorded.

    tests/scripts/english.py                 compare the counts with tests/scripts/english.json; `make lint` runs this
    tests/scripts/english.py --list PATH...  print each finding in these files or folders
    tests/scripts/english.py --record        lower the recorded counts to today's; a count never rises
    tests/scripts/english.py --sample N      print N random sentences of each area, for a reader who does not know the project

A finding has one of these kinds:

    subject   a sentence begins with who, whoever, what, whatever, that which, those who, of, or the same
    phrase    a phrase that has a standard term, see PHRASES
    alone     a doc comment needs its neighbor: "The same for ...", "See ..." and nothing else
    long      a sentence has more than 25 words
    heading   an entry of a list or a heading reads like a commit: "Mended"
    width     a line has more than 130 characters
    name      the name of a test has more than eight words

The list EXCEPTIONS in tests/scripts/english.json has findings that stay, each with its reason.
"""

import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_suffix(".json")

MOST_WORDS = 25
MOST_COLUMNS = 130
MOST_WORDS_OF_A_NAME = 8

SUBJECT = re.compile(r"(who|whoever|whom|whose|what|whatever|that which|those (who|that|whom)|of|the same)\b", re.I)
ALONE = re.compile(r"(the same|see|like|as|ditto|likewise|that of|those of)\b", re.I)
HEADING = re.compile(r"mended\b", re.I)
PHRASES = {
    name: re.compile(pattern, re.I)
    for name, pattern in {
        "to give back -> to release": r"\bg(i|a)v(e|es|ing|en) (it |them |one |that |this |a lock |the lock |locks )?back\b",
        "to let go -> to release": r"\blet(s|ting)? (it |them )?go\b",
        "to mend -> to fix": r"\bmend(s|ed|ing)?\b",
        "dearer -> slower": r"\bdearer\b|\bcheaper path\b",
        "stranger -> foreign write, external client": r"\bstrangers?\b",
        "who holds, who waits -> holder, waiter": r"\b(who|whoever) (holds?|waits?|held|waited|is waiting|asks|comes|calls|has it)\b",
        "its turn -> its grant": r"\b(its|their|his|whose|the|my) turns?\b",
        "to be told, to hear of -> is notified": r"\b(be|is|are|was|were|been|being|not|never) told\b|\b(hears?|heard|hearing) of\b",
        "the own clock -> the local monotonic clock": r"\b(the|an?|by) own\b",
        "kept hold, what is kept -> renewed hold": r"\bkept holds?\b|\bwhat is kept\b",
        "anew -> again": r"\banew\b",
        "is to be had -> is available": r"\bto be had\b",
        "no more, any more -> no longer": r"\bno more(?! (than|\w+ than|[\w-]+s\b))|\bany ?more\b",
        "of use -> used, unused": r"\bof (no |any |some )?use\b",
        "in the way of -> blocks": r"\bin the way\b",
        "behind the back -> in the background": r"\bbehind [\w' ]+ back\b",
        "given up -> closed": r"\bconnections? (that|which) (is|are|was|were) given up\b",
        "what there is / whatever -> name the thing": r"\bwhatever\b|\bwhoever\b|\bwhomever\b",
        "however (a lock is freed) -> name the ways": r"\bbe that\b|\bbe it\b",
    }.items()
}

# Folders and files of each area; a file belongs to the first that has it.
AREAS = {
    "readme": ["README.md", "SECURITY.md", "redis.conf"],
    "docs": ["docs", "CHANGELOG.md", "CONTRIBUTING.md"],
    "clients": ["clients", "examples", "docs/clients"],
    "src": ["src"],
    "tests": ["tests", ".ci", "Makefile"],
    "benches": ["benches"],
    "tools": ["tools", "Dockerfile"],
}
# Strings that users read: errors, help, settings, log lines and fields of INFO.
TEXTS = ("src/", "tools/src/")
MARKDOWN = {".md"}
SLASHES = {".rs", ".go", ".java", ".js", ".mjs", ".ts", ".c"}
HASHES = {".py", ".sh", ".conf", ".toml", ".yml", ".yaml", ""}
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|No|approx)\.$")


class Finding(NamedTuple):
    area: str
    kind: str
    path: str
    line: int
    text: str
    reason: str


def main():
    words = sys.argv[1:]
    if words[:1] == ["--list"]:
        wanted = tuple(words[1:])
        found = [finding for finding in findings() if not wanted or finding.path.startswith(wanted)]
        for finding in found:
            print(f"{finding.path}:{finding.line}: {finding.kind}{finding.reason}: {finding.text}")
        print(f"{len(found)} findings")
        return 0
    if words[:1] == ["--sample"]:
        return sample(int(words[1]))
    counts = Counter((finding.area, finding.kind) for finding in findings())
    now = {area: {kind: count for (of, kind), count in sorted(counts.items()) if of == area} for area in [*AREAS, "texts"]}
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {"counts": now, "exceptions": []}
    risen = [
        f"{area}: {count} findings of the kind {kind}, recorded {recorded['counts'].get(area, {}).get(kind, 0)}"
        for area, kinds in now.items()
        for kind, count in kinds.items()
        if count > recorded["counts"].get(area, {}).get(kind, 0)
    ]
    if risen:
        print("English: these counts rose; `tests/scripts/english.py --list PATH` shows where:", *risen, sep="\n", file=sys.stderr)
        return 1
    if words[:1] == ["--record"]:
        RECORD.write_text(json.dumps({"counts": now, "exceptions": recorded["exceptions"]}, indent=2) + "\n")
    elif now != recorded["counts"]:
        print("English: some counts fell; record them with `tests/scripts/english.py --record`")
    print("English:", ", ".join(f"{area} {sum(kinds.values())}" for area, kinds in now.items()))
    return 0


def sample(count):
    """Prints random sentences of each area, the same ones for each run of one day's tree."""
    for area in [*AREAS, "texts"]:
        pool = sorted({text for of, _, _, text, _ in sentences() if of == area and len(text.split()) >= 4})
        print(f"\n== {area}")
        for text in random.Random(count).sample(pool, min(count, len(pool))):
            print(f"- {text}")
    return 0


def findings():
    exceptions = json.loads(RECORD.read_text())["exceptions"] if RECORD.exists() else []
    stays = {(exception["path"], exception["kind"], exception["text"]) for exception in exceptions}
    for finding in all_findings():
        if not any(
            finding.path == path and finding.kind == kind and text in finding.text for path, kind, text in stays
        ):
            yield finding


def all_findings():
    for area, path, line, text, opens_a_doc_comment in sentences():
        yield from (Finding(area, kind, path, line, text, reason) for kind, reason in judge(text, opens_a_doc_comment))
    for area, path in files():
        lines = read(path).splitlines()
        for number, line in enumerate(lines, 1):
            if len(line) > MOST_COLUMNS and not ("http" in line and " " not in line.strip()):
                yield Finding(area, "width", path, number, line[:60] + "...", "")
            if (name := test_name(lines, number - 1)) and len(name.split("_")) > MOST_WORDS_OF_A_NAME:
                yield Finding(area, "name", path, number, name, "")


def judge(text, opens_a_doc_comment):
    """The kinds of findings in one sentence."""
    words = text.split()
    is_question = text.endswith("?")
    if SUBJECT.match(text) and not is_question and not text.lower().startswith("of course"):
        yield "subject", ""
    if len(words) > MOST_WORDS:
        yield "long", f" ({len(words)} words)"
    if HEADING.match(text):
        yield "heading", ""
    if opens_a_doc_comment and ALONE.match(text) and not is_question and len(words) < 12:
        yield "alone", ""
    for name, pattern in PHRASES.items():
        if pattern.search(text):
            yield "phrase", f" ({name})"


def test_name(lines, index):
    """The name of the test that a line defines: a function below `#[test]`, or one that runs on servers."""
    found = re.match(r"\s*(?:pub )?fn (\w+)\(", lines[index])
    if not found:
        return None
    above = "".join(lines[max(0, index - 3) : index])
    return found[1] if "#[test]" in above or re.search(r"\((server|servers|setup|to)\w*: &?\w*(Server|Setup)", lines[index]) else None


def files():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    for name in sorted(filter(None, listed.stdout.decode().split("\0"))):
        path = Path(name)
        if path.suffix not in MARKDOWN | SLASHES | HASHES or not (ROOT / name).is_file() or path.name in {"LICENSE", ".gitignore"}:
            continue
        if name in ("Cargo.lock", "tests/scripts/english.py"):
            continue
        for area in ("clients", *AREAS):
            if any(name == place or name.startswith(place + "/") for place in AREAS[area]):
                yield area, name
                break


CONTENT = {}


def read(path):
    if path not in CONTENT:
        CONTENT[path] = (ROOT / path).read_text(errors="replace")
    return CONTENT[path]


SENTENCES = []


def sentences():
    """Area, path, line, text of each sentence, and whether it opens a doc comment."""
    if not SENTENCES:
        for area, path in files():
            suffix = Path(path).suffix
            text = read(path)
            if suffix in MARKDOWN:
                blocks = markdown(text)
            elif suffix in SLASHES:
                blocks = slashes(text, suffix)
            else:
                blocks = hashes(text, suffix)
            SENTENCES.extend((area, path, *rest) for block in blocks for rest in split(*block))
            if path.startswith(TEXTS) and suffix == ".rs":
                SENTENCES.extend(("texts", path, *rest) for block in strings(text) for rest in split(*block))
    return SENTENCES


def split(line, text, opens):
    """The sentences of a paragraph."""
    text = re.sub(r"`[^`]*`", "`x`", text)
    text = re.sub(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])?", r"\1", text)
    text = re.sub(r"https?://\S+", "link", text)
    text = re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)\*{1,2}", "", text)
    text = re.sub(r"\s+", " ", text).strip()
    part = ""
    for piece in re.split(r"(?<=[.!?:;])[)\"']? (?=[A-Z`\"(]|$)", text):
        part = f"{part} {piece}".strip()
        if ABBREVIATIONS.search(part):
            continue
        if re.search(r"[A-Za-z]", part):
            yield line, part, opens
        part, opens = "", False
    if part and re.search(r"[A-Za-z]", part):
        yield line, part, opens


def markdown(text):
    start, block, fenced = 0, [], False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            fenced = not fenced
            stripped = ""
        elif fenced:
            continue
        item = re.match(r"([-*+]|\d+\.) +", stripped)
        if not stripped or item or stripped.startswith(("#", "|", "<")):
            if block:
                yield start, " ".join(block), False
            block = []
        if stripped.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                if re.search(r"[A-Za-z]", cell):
                    yield number, cell, False
        elif stripped.startswith("<"):
            continue
        elif stripped.startswith("#"):
            yield number, stripped.lstrip("# "), False
        elif stripped:
            if not block:
                start = number
            block.append(stripped[item.end() :] if item else stripped)


def comments(lines):
    """Yields the paragraphs of comments. A line's kind: "doc" for a doc comment, "code" for others, None without a comment."""
    start, block, last, opens, fenced = 0, [], None, False, False
    for number, kind, line in [*lines, (0, None, "")]:
        if kind != last:
            fenced = False
        if line.startswith("```"):
            fenced = not fenced
            line = ""
        elif fenced:
            line = ""
        item = re.match(r"([-*+]|\d+\.) +", line)
        if block and (kind != last or not line or item or line.startswith(("|", "#", "@", "<"))):
            yield start, " ".join(block), opens
            block, opens = [], False
        if kind != last:
            opens = kind == "doc"
        if kind and line and not line.startswith(("|", "SPDX")):
            start = start if block else number
            block.append(line[item.end() :] if item else line)
        last = kind


def slashes(text, suffix):
    found, inside = [], None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if inside:
            end = "*/" in stripped
            found.append((number, inside, stripped.split("*/")[0].lstrip("* ").strip()))
            inside = None if end else inside
        elif match := re.match(r"/\*(\*?)(.*)", stripped):
            kind = "doc" if match[1] else "code"
            found.append((number, kind, match[2].split("*/")[0].strip()))
            inside = None if "*/" in stripped else kind
        elif match := re.match(r"(//[/!]?)(?!/) ?(.*)", stripped):
            is_doc = match[1] != "//" or suffix == ".go"
            found.append((number, "doc" if is_doc else "code", match[2].strip()))
        else:
            found.append((number, None, ""))
    yield from comments(found)


def hashes(text, suffix):
    found, inside = [], False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if suffix == ".py" and inside:
            end = stripped.endswith('"""')
            found.append((number, "doc", stripped.removesuffix('"""')) if not line.startswith("    " * 3) else (number, None, ""))
            inside = not end
        elif suffix == ".py" and (match := re.match(r'r?"""(.*)', stripped)):
            end = match[1].endswith('"""')
            found.append((number, "doc", match[1].removesuffix('"""')))
            inside = not end
        elif match := re.match(r"#(?!!) ?(.*)", stripped):
            found.append((number, "code", match[1].strip()))
        elif match := re.match(r"[\w-]+:.* ## (.*)", stripped):
            found.append((number, "doc", match[1]))
        else:
            found.append((number, None, ""))
    yield from comments(found)


def strings(text):
    """String literals of at least three words outside of tests."""
    text = re.split(r"^#\[cfg\(test\)\]\nmod tests", text, flags=re.M)[0]
    text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    text = re.sub(r'r#"(.*?)"#', lambda raw: '"' + raw[1].replace('"', "'") + '"', text, flags=re.S)
    for match in re.finditer(r'"((?:\\.|[^"\\])*)"', text, re.S):
        content = re.sub(r"\\\n\s*", "", match[1]).replace("\\n", " ")
        content = re.sub(r"\\(.)", r"\1", content)
        if len(re.findall(r"[A-Za-z]{2,}", content)) >= 3:
            content = re.sub(r"^[A-Z]{3,} (?=[a-z])", "", content)
            yield text[: match.start()].count("\n") + 1, content, False


if __name__ == "__main__":
    sys.exit(main())
