"""The code blocks of README and docs: where each stands, what it is, and what a test does with it."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Block", "blocks", "commands", "pages"]

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:\A|\n[ \t]*\n)((?: {4}[^\n]*\n|[ \t]*\n(?= {4}))+)")
_NOT_RUN = re.compile(r"<!-- not run: ([^>]+) -->\s*\Z")
_COMMAND = re.compile(r"(?:\$ )?(evolvent|python|torchrun|pip|make) ")
_WORDS = re.compile(r"^(?:from \S+ import |import |with \S+\(|\w+(?:, \w+)* = \w|for \w+ in |\"\"\")", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block: its page, line and kind ("python", "commands", "toml" or "text"); why it is not run, if so."""

    page: str
    line: int
    kind: str
    text: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README and every page of docs that people write; those of the commands are help texts (test_commands.py)."""
    written = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "commands"]
    return [ROOT / "README.md", *sorted(written)]


def blocks(path: Path) -> Iterator[Block]:
    """All code blocks of a page, fenced and indented; list items' continuations are none of them."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    found = [(m.start(), m[1], m[2]) for m in _FENCE.finditer(text)]
    bare = _FENCE.sub(lambda m: "\n" * m[0].count("\n"), text)
    start = {m.start(): m.end() - m.start() for m in _FENCE.finditer(text)}
    lines = {line for at, size in start.items() for line in range(_line(text, at), _line(text, at + size) + 1)}
    for m in _INDENTED.finditer(bare):
        at = _line(bare, m.start(1))
        if at not in lines:
            found.append((_place(text, at), "", re.sub(r"^ {4}", "", m[1], flags=re.MULTILINE).strip("\n") + "\n"))
    for at, language, code in sorted(found):
        marked = _NOT_RUN.search(text[:at])
        yield Block(name, _line(text, at), _kind(language, code), code, marked[1].strip() if marked else "")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _place(text: str, line: int) -> int:
    place = 0
    for _ in range(line - 1):
        place = text.index("\n", place) + 1
    return place


def _kind(language: str, code: str) -> str:
    if language in ("python", "py"):
        return "python"
    if language in ("text", "toml"):
        return language
    if _COMMAND.match(code):
        return "commands"
    if not language and _is_toml(code):
        return "toml"
    return "python" if not language and _WORDS.search(code) and _is_python(code) else "text"


def _is_toml(code: str) -> bool:
    try:
        return bool(re.search(r"^\[\w+\]$", code, re.MULTILINE)) and bool(tomllib.loads(code))
    except tomllib.TOMLDecodeError:
        return False


def _is_python(code: str) -> bool:
    try:
        compile(code, "block", "exec")
    except SyntaxError:
        return False
    return True


def commands(block: Block) -> Iterator[list[str]]:
    """The words behind `evolvent` of every such command line; lines that end in a backslash go on, comments go."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    for line in joined.splitlines():
        words = re.split(r" {4,}(?=[a-z])|\s#\s", line.strip().removeprefix("$ "))[0]
        words = re.sub(r" \.\.\.$", "" if not words.endswith("--to ...") else " FILE", words.removesuffix("&").strip())
        torchrun = re.match(r"torchrun .*?-m (evolvent .*)", words)
        words = torchrun[1] if torchrun else words
        if words.startswith("evolvent "):
            yield shlex.split(words)[1:]
