"""`evolvent new world NAME | method NAME`: the skeleton of a package of one's own, with tests that pass."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from rich.console import Console

from evolvent.cli.parsing import Parser, choose, verbs_help
from evolvent.cli.registry import world_origins
from evolvent.errors import ConfigError, Problem
from evolvent.files import disk_errors
from evolvent.plugins import installed_plugins
from evolvent.view.escape import plain

__all__ = ["run"]

_ABOUT = {
    "world": "tasks and the environment to act in, for every verb",
    "method": "a way to improve a policy, for `evolvent train rl --method NAME`",
}
_NAME = re.compile(r"[a-z][a-z0-9_]{1,40}")


def run(words: Sequence[str], console: Console) -> int:
    """Write a skeleton; returns the exit code."""
    if words and words[0] in ("-h", "--help"):
        console.print(verbs_help("evolvent new", _ABOUT), soft_wrap=True)
        return 0
    what, rest = choose("evolvent new", words, _ABOUT)
    parser = Parser(f"evolvent new {what}", f"Write a package with {_ABOUT[what]}.")
    parser.add("name", help="small letters, digits and _; the name that commands will know")
    parser.add("--to", type=Path, help="a folder that does not exist yet (default: ./NAME)")
    found = parser.read(rest)
    folder = found.to or Path(found.name)
    _check(what, found.name, folder)
    written = _write(what, found.name, folder)
    console.print(f"wrote {plain(str(folder))}: {', '.join(plain(name) for name in written)}", soft_wrap=True)
    console.print(
        f"next   cd {plain(str(folder))} && pip install -e . && python -m pytest && cat README.md", soft_wrap=True
    )
    return 0


def _check(what: str, name: str, folder: Path) -> None:
    problems = []
    if not _NAME.fullmatch(name):
        expected = "two or more small letters, digits and _, beginning with a letter"
        problems.append(Problem("name", f"got {name!r}", expected))
    elif {name, _class(name)} & {*_imported(what), *keyword.kwlist, *dir(builtins)}:
        hint = "its module uses the word, or the class's name, for something else: choose another name"
        problems.append(Problem("name", f"got {name!r}", hint))
    elif name in _known(what):
        problems.append(Problem("name", f"there is a {what} {name!r} already", "choose another name"))
    if folder.exists():
        problems.append(Problem("--to", f"{folder} exists", "nothing is written over: name another folder"))
    if problems:
        raise ConfigError(problems)


def _known(what: str) -> set[str]:
    if what == "world":
        return set(world_origins())
    return {
        "ppo",
        "twosome",
        "token_ppo",
        "ntpo",
        "poad",
        "etpo",
        "grpo",
        "scaling_inter",
        "r3",
        *installed_plugins("methods"),
    }


def _class(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


def _imported(what: str) -> set[str]:
    """The names that the skeleton's modules import: one of our own beside them would take their place."""
    texts = [template.read_text("utf-8") for template in files("evolvent.cli").joinpath("skeletons", what).iterdir()]
    lines = re.findall(r"^(?:from \S+ )?import ([\w, ]+)$", "\n".join(texts), re.MULTILINE)
    return {name for line in lines for name in re.findall(r"\w+", line)}


def _write(what: str, name: str, folder: Path) -> list[str]:
    """Fill in the templates; returns the paths of the files, in order."""
    names = {"name": name, "module": f"{name}_{what}", "Name": _class(name)}
    # The text of a programme is no page: nothing in it is escaped, and its only inputs are checked names.
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    written = []
    with disk_errors(folder):
        for template in sorted(files("evolvent.cli").joinpath("skeletons", what).iterdir(), key=lambda one: one.name):
            path = template.name.removesuffix(".jinja").replace("__module__", names["module"]).replace("--", "/")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(environment.from_string(template.read_text("utf-8")).render(names), encoding="utf-8")
            written.append(path)
    return written
