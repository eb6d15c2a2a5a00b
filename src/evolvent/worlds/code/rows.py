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
from evolvent.grade.code import CodeTests, Form, classify_tests, parse_humaneval, parse_mbpp
from evolvent.grade.exchanges import Exchanges
from evolvent.trajectory import canonical_json
from evolvent.worlds.code.apps import apps_folders, folder_entry, parse_apps_entry

__all__ = ["CodeRow", "read_code", "read_code_row"]

_PASS_THESE = "The function has to pass these tests:"


@dataclass(frozen=True)
class CodeRow:
    """A programming problem.

    Args:
        file, index: its file, and its index there.
        name: its id in the set.
        layout: the set whose layout it has.
        text: the question as it is shown.
        prompt: the program that an answer continues; "": an answer is a whole program.
        tests: the tests that judge it.
        solution: a whole program that solves it; "": none is given.
        form: how its tests can be run; "weak" ones say nothing about an answer.
        digest: digest of question and tests.
        about: the set's remarks: in APPS its difficulty.
        other_solutions: more programs that solve it.
    """

    file: str
    index: int
    name: str
    layout: Literal["humaneval", "mbpp", "apps"]
    text: str
    prompt: str
    tests: CodeTests | Exchanges
    solution: str
    form: Form
    digest: str
    about: str = ""
    other_solutions: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Returns the row's location for a message."""
        return f"{self.file}, row {self.index} ({self.name})"


def read_code(path: Path) -> tuple[tuple[CodeRow, ...], tuple[Problem, ...]]:
    """Reads all problems of a file, of the JSON files below a folder in the order of their paths, or of APPS in
    folders.

    Returns:
        The rows that can be used, and what is wrong with the others.
    Raises:
        ConfigError: no such file or folder, a file that is no JSON, or not one row that can be used.
    """
    folders = apps_folders(path)
    if folders:
        return read_rows(
            [(folder, folder.relative_to(path).as_posix()) for folder in folders], read_code_row, load=_load_folder
        )
    files = row_files(path, "**/*")
    if not files:
        raise ConfigError(
            "no problems here", value=str(path), expected="a file of HumanEval, MBPP or APPS, or a folder"
        )
    return read_rows(files, read_code_row)


def _load_folder(folder: Path) -> Iterator[object]:
    try:
        yield folder_entry(folder)
    except SampleInvalid as error:  # told by the reader as any other row
        yield error


def read_code_row(entry: object, file: str, index: int) -> CodeRow:
    """Reads one row of any of the layouts.

    Raises:
        SampleInvalid: no object, no known layout, no tests, or tests that cannot be read.
    """
    if isinstance(entry, SampleInvalid):
        raise entry
    if not isinstance(entry, Mapping):
        raise SampleInvalid("a row that is no object", value=str(entry)[:80], expected="a JSON object")
    parse_entry = (
        _parse_humaneval if "entry_point" in entry else _parse_apps if "input_output" in entry else _parse_mbpp
    )
    try:
        return parse_entry(entry, file, index)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SampleInvalid("tests that cannot be read", value=str(error), expected="Python") from error


def _parse_humaneval(entry: Mapping[str, Any], file: str, index: int) -> CodeRow:
    name, prompt, entry_point, test = (_get_text(entry, key) for key in ("task_id", "prompt", "entry_point", "test"))
    body = _get_text(entry, "canonical_solution", needed=False)
    tests = parse_humaneval(prompt, test, entry_point)
    return CodeRow(
        file,
        index,
        name,
        "humaneval",
        prompt,
        prompt,
        tests,
        f"{prompt}{body}" if body else "",
        classify_tests(tests),
        _digest(prompt, test),
    )


def _parse_mbpp(entry: Mapping[str, Any], file: str, index: int) -> CodeRow:
    asserts = _get_lines(entry, "test_list")
    imports = "\n".join(
        _get_lines(entry, "test_imports", needed=False) or [_get_text(entry, "test_setup_code", needed=False)]
    )
    text = _get_text(entry, "prompt", needed=False) or _get_text(entry, "text")
    code = _get_text(entry, "code", needed=False)
    tests = parse_mbpp("\n".join(asserts), imports=imports, entry=_find_entry(asserts, code))
    shown_text = "\n".join((text, "", _PASS_THESE, *asserts))
    name = f"MBPP/{entry.get('task_id', index)}"
    return CodeRow(
        file, index, name, "mbpp", shown_text, "", tests, code, classify_tests(tests), _digest(text, *asserts)
    )


def _parse_apps(entry: Mapping[str, Any], file: str, index: int) -> CodeRow:
    text, tests, solutions = parse_apps_entry(entry)
    number = entry.get("problem_id", entry.get("id", index))
    digest_texts = [text, *(canonical_json(list(exchange)) for exchange in (tests.inputs, tests.outputs))]
    return CodeRow(
        file,
        index,
        f"APPS/{number}",
        "apps",
        text,
        "",
        tests,
        solutions[0] if solutions else "",
        "plain",
        _digest(*digest_texts),
        str(entry.get("difficulty") or ""),
        solutions[1:],
    )


def _find_entry(asserts: Sequence[str], code: str) -> str:
    """Finds the function of the solution that the asserts call; "" without a solution."""
    called_names = {
        node.func.id
        for line in asserts
        for node in ast.walk(ast.parse(line))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    defined_names = [
        node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef) and node.name in called_names
    ]
    return defined_names[-1] if defined_names else ""


def _get_text(entry: Mapping[str, Any], name: str, *, needed: bool = True) -> str:
    value = entry.get(name) or ""
    if isinstance(value, str) and (value or not needed):
        return value
    raise SampleInvalid(f"a row without {name}", value=sorted(map(str, entry)), expected="a text")


def _get_lines(entry: Mapping[str, Any], name: str, *, needed: bool = True) -> list[str]:
    value = entry.get(name, [])
    if isinstance(value, list) and all(isinstance(line, str) for line in value) and (value or not needed):
        return value
    raise SampleInvalid(f"a row without {name}", value=str(value)[:80], expected="a list of lines of Python")


def _digest(*texts: str) -> str:
    return hashlib.sha256(canonical_json(list(texts)).encode()).hexdigest()[:16]
