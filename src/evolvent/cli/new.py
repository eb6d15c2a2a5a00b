"""`evolvent new world NAME | method NAME`: the skeleton of a new package, with tests that pass."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from rich.console import Console

from evolvent.cli.setup.registry import describe_worlds
from evolvent.cli.terminal.parsing import Parser, choose_verb, format_verbs_help
from evolvent.errors import ConfigError, Problem
from evolvent.files import disk_errors
from evolvent.plugins import installed_plugins
from evolvent.view.escape import show_hidden

__all__ = ["run"]

_KIND_HELP = {
    "world": "tasks and the environment to act in, for every verb",
    "method": "a way to improve a policy, for `evolvent train rl --method NAME`",
}
_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{1,40}")


def run(argv: Sequence[str], console: Console) -> int:
    """Writes a skeleton; returns the exit code."""
    if argv and argv[0] in ("-h", "--help"):
        console.print(format_verbs_help("evolvent new", _KIND_HELP), soft_wrap=True)
        return 0
    kind, kind_argv = choose_verb("evolvent new", argv, _KIND_HELP)
    parser = Parser(f"evolvent new {kind}", f"Write a package with {_KIND_HELP[kind]}.")
    parser.add("name", help="small letters, digits and _; the name that commands will know")
    parser.add(
        "--to", dest="output_dir", metavar="DIR", type=Path, help="a folder that does not exist yet (default: ./NAME)"
    )
    args = parser.parse_argv(kind_argv)
    folder = args.output_dir or Path(args.name)
    _check_name(kind, args.name, folder)
    written_paths = _write_skeleton(kind, args.name, folder)
    console.print(
        f"wrote {show_hidden(str(folder))}: {', '.join(show_hidden(name) for name in written_paths)}", soft_wrap=True
    )
    console.print(
        f"next   cd {show_hidden(str(folder))} && pip install -e . && python -m pytest && cat README.md", soft_wrap=True
    )
    return 0


def _check_name(kind: str, name: str, folder: Path) -> None:
    problems = []
    if not _NAME_PATTERN.fullmatch(name):
        expected = "use two or more lower-case letters, digits and _, with a letter first"
        problems.append(Problem("name", f"got {name!r}", expected))
    elif {name, _class_name(name)} & {*_imported_names(kind), *keyword.kwlist, *dir(builtins)}:
        hint = "choose another name; its module already uses the word or the class name"
        problems.append(Problem("name", f"got {name!r}", hint))
    elif name in _known_names(kind):
        problems.append(Problem("name", f"{kind} {name!r} already exists", "choose another name"))
    if folder.exists():
        problems.append(Problem("--to", f"{folder} already exists", "choose another folder"))
    if problems:
        raise ConfigError(problems)


def _known_names(kind: str) -> set[str]:
    if kind == "world":
        return set(describe_worlds())
    return {
        "ppo",
        "twosome",
        "glam",
        "token_ppo",
        "ntpo",
        "poad",
        "etpo",
        "grpo",
        "scaling_inter",
        "r3",
        *installed_plugins("methods"),
    }


def _class_name(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


def _imported_names(kind: str) -> set[str]:
    """Returns the names that the skeleton's modules import; a module of the same name would shadow them."""
    texts = [template.read_text("utf-8") for template in files("evolvent.cli").joinpath("skeletons", kind).iterdir()]
    lines = re.findall(r"^(?:from \S+ )?import ([\w, ]+)$", "\n".join(texts), re.MULTILINE)
    return {name for line in lines for name in re.findall(r"\w+", line)}


def _write_skeleton(kind: str, name: str, folder: Path) -> list[str]:
    """Fills in the templates; returns the paths of the files, in order."""
    names = {"name": name, "module": f"{name}_{kind}", "Name": _class_name(name)}
    # The text of a program is no page: nothing in it is escaped, and its only inputs are checked names.
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    written_paths = []
    with disk_errors(folder):
        for template in sorted(
            files("evolvent.cli").joinpath("skeletons", kind).iterdir(), key=lambda template_file: template_file.name
        ):
            path = template.name.removesuffix(".jinja").replace("__module__", names["module"]).replace("--", "/")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(environment.from_string(template.read_text("utf-8")).render(names), encoding="utf-8")
            written_paths.append(path)
    return written_paths
