"""Rows of HumanEval (Chen et al. 2021, 2107.03374), MBPP (Austin et al. 2021, 2108.07732; full, sanitized) and APPS.

HumanEval: `{"task_id", "prompt", "entry_point", "canonical_solution", "test"}`; the test defines `check(candidate)`.
MBPP: `{"task_id", "prompt" or "text", "code", "test_list", "test_imports" or "test_setup_code"?}`. What a row is, its
fields say; for APPS see `worlds.code.apps`. A row that cannot be used is `SampleInvalid`, and the others are read on.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evolvent.data.jsonl import read_rows, row_files
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.grade.code import Form, Tests, form, humaneval, mbpp
from evolvent.grade.exchanges import Exchanges
from evolvent.trajectory import canonical_json
from evolvent.worlds.code.apps import apps_folders, apps_parts, folder_entry

__all__ = ["CodeRow", "read_code", "read_code_row"]

_PASS_THESE = "The function has to pass these tests:"


@dataclass(frozen=True)
class CodeRow:
    """A problem of programming.

    Args:
        file, place: where it stands.
        name: its id in the set.
        layout: which set it is written like.
        text: what is asked, as it is shown.
        prompt: the program that an answer goes on from; "": an answer is a program of its own.
        tests: what judges it.
        solution: a program that solves it, whole; "": none is given.
        form: how its tests can be run; "weak" ones say nothing about an answer.
        about: what the set says of it: in APPS how difficult it is. others: more programs that solve it.
    """

    file: str
    place: int
    name: str
    layout: Literal["humaneval", "mbpp", "apps"]
    text: str
    prompt: str
    tests: Tests | Exchanges
    solution: str
    form: Form
    digest: str
    about: str = ""
    others: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The row for a message."""
        return f"{self.file}, row {self.place} ({self.name})"


def read_code(path: Path) -> tuple[tuple[CodeRow, ...], tuple[Problem, ...]]:
    """All problems of a file, or of the JSON files below a folder in the order of their paths; or APPS in folders.

    Returns:
        The rows that can be used, and what is wrong with the others.
    Raises:
        ConfigError: no such file or folder, a file that is no JSON, or not one row that can be used.
    """
    folders = apps_folders(path)
    if folders:
        return read_rows([(one, one.relative_to(path).as_posix()) for one in folders], read_code_row, load=_loaded)
    files = row_files(path, "**/*")
    if not files:
        raise ConfigError(
            "no problems here", value=str(path), expected="a file of HumanEval, MBPP or APPS, or a folder"
        )
    return read_rows(files, read_code_row)


def _loaded(folder: Path) -> Iterator[object]:
    try:
        yield folder_entry(folder)
    except SampleInvalid as error:  # told by the reader as any other row
        yield error


def read_code_row(entry: object, file: str, place: int) -> CodeRow:
    """One row of any of the layouts.

    Raises:
        SampleInvalid: no object, no known layout, no tests, or tests that cannot be read.
    """
    if isinstance(entry, SampleInvalid):
        raise entry
    if not isinstance(entry, Mapping):
        raise SampleInvalid("a row that is no object", value=str(entry)[:80], expected="a JSON object")
    read = _humaneval if "entry_point" in entry else _apps if "input_output" in entry else _mbpp
    try:
        return read(entry, file, place)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SampleInvalid("tests that cannot be read", value=str(error), expected="Python") from error


def _humaneval(entry: Mapping[str, Any], file: str, place: int) -> CodeRow:
    name, prompt, entry_point, test = (_text(entry, key) for key in ("task_id", "prompt", "entry_point", "test"))
    body = _text(entry, "canonical_solution", needed=False)
    tests = humaneval(prompt, test, entry_point)
    return CodeRow(
        file,
        place,
        name,
        "humaneval",
        prompt,
        prompt,
        tests,
        f"{prompt}{body}" if body else "",
        form(tests),
        _digest(prompt, test),
    )


def _mbpp(entry: Mapping[str, Any], file: str, place: int) -> CodeRow:
    asserts = _lines(entry, "test_list")
    imports = "\n".join(_lines(entry, "test_imports", needed=False) or [_text(entry, "test_setup_code", needed=False)])
    text = _text(entry, "prompt", needed=False) or _text(entry, "text")
    code = _text(entry, "code", needed=False)
    tests = mbpp("\n".join(asserts), imports=imports, entry=_entry(asserts, code))
    shown = "\n".join((text, "", _PASS_THESE, *asserts))
    name = f"MBPP/{entry.get('task_id', place)}"
    return CodeRow(file, place, name, "mbpp", shown, "", tests, code, form(tests), _digest(text, *asserts))


def _apps(entry: Mapping[str, Any], file: str, place: int) -> CodeRow:
    text, tests, solutions = apps_parts(entry)
    number = entry.get("problem_id", entry.get("id", place))
    said = [text, *(canonical_json(list(one)) for one in (tests.inputs, tests.outputs))]
    return CodeRow(
        file,
        place,
        f"APPS/{number}",
        "apps",
        text,
        "",
        tests,
        solutions[0] if solutions else "",
        "plain",
        _digest(*said),
        str(entry.get("difficulty") or ""),
        solutions[1:],
    )


def _entry(asserts: Sequence[str], code: str) -> str:
    """The function of the solution that the asserts call; "" where no solution says."""
    called = {
        node.func.id
        for line in asserts
        for node in ast.walk(ast.parse(line))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    made = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef) and node.name in called]
    return made[-1] if made else ""


def _text(entry: Mapping[str, Any], name: str, *, needed: bool = True) -> str:
    value = entry.get(name) or ""
    if isinstance(value, str) and (value or not needed):
        return value
    raise SampleInvalid(f"a row without {name}", value=sorted(map(str, entry)), expected="a text")


def _lines(entry: Mapping[str, Any], name: str, *, needed: bool = True) -> list[str]:
    value = entry.get(name, [])
    if isinstance(value, list) and all(isinstance(line, str) for line in value) and (value or not needed):
        return value
    raise SampleInvalid(f"a row without {name}", value=str(value)[:80], expected="a list of lines of Python")


def _digest(*said: str) -> str:
    return hashlib.sha256(canonical_json(list(said)).encode()).hexdigest()[:16]
