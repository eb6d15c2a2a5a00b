"""Rows of HumanEval (Chen et al. 2021, 2107.03374), MBPP (Austin et al. 2021, 2108.07732; full, sanitized) and APPS.

HumanEval: `{"task_id", "prompt", "entry_point", "canonical_solution", "test"}`; the test defines `check(candidate)`.
MBPP: `{"task_id", "prompt" or "text", "code", "test_list", "test_imports" or "test_setup_code"?}`. What a row is, its
fields say. A row that cannot be used is `SampleInvalid`, and the others are read on.

Rows of APPS (Hendrycks et al. 2021, 2105.09938), in both forms in which it is published.

As rows (codeparrot/apps): `{"problem_id" or "id", "question", "solutions", "input_output", "difficulty", "url",
"starter_code"}`, where solutions and input_output are JSON in a text. As folders: `train|test/NUMBER/` with
`question.txt`, `solutions.json`, `input_output.json`, `metadata.json` and `starter_code.py`; all but the question may
be missing. A problem without tests cannot be judged and is left out; one without solutions is a task like any other.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evolvent.data.jsonl import read_rows, row_files
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.grade.code import CodeTests, Form, classify_tests, parse_humaneval, parse_mbpp
from evolvent.grade.exchanges import Exchanges
from evolvent.trajectory import canonical_json

__all__ = ["CodeRow", "apps_folders", "folder_entry", "parse_apps_entry", "read_code", "read_code_row"]


_QUESTION = "question.txt"
_FILES = {"solutions": "solutions.json", "input_output": "input_output.json", "starter_code": "starter_code.py"}
_PROGRAM_REQUEST = "Write a whole program: it reads standard input and prints the answer."
_FUNCTION_REQUEST = "Complete the code that is given."


def apps_folders(path: Path) -> list[Path]:
    """Lists the problem folders below a folder, in the order of their paths; none: it is not APPS in folders."""
    return sorted(question_path.parent for question_path in path.rglob(_QUESTION)) if path.is_dir() else []


def folder_entry(folder: Path) -> Mapping[str, object]:
    """Reads the folder of one problem as a row.

    Raises:
        SampleInvalid: a file of it cannot be read.
    """
    try:
        texts = {
            name: (folder / file).read_text(encoding="utf-8-sig")
            for name, file in _FILES.items()
            if (folder / file).is_file()
        }
        metadata_path = folder / "metadata.json"
        metadata = json.loads(metadata_path.read_text(encoding="utf-8-sig")) if metadata_path.is_file() else {}
        question = (folder / _QUESTION).read_text(encoding="utf-8-sig")
    except (OSError, ValueError, RecursionError) as error:
        raise SampleInvalid("cannot read the problem", value=str(error)[:200], expected="text and JSON") from error
    extra_fields = {name: metadata.get(name) for name in ("difficulty", "url")} if isinstance(metadata, Mapping) else {}
    return {"input_output": "", **texts, **extra_fields, "problem_id": folder.name, "question": question}


def parse_apps_entry(entry: Mapping[str, object]) -> tuple[str, Exchanges, tuple[str, ...]]:
    """Parses the question, the tests and the solutions of a row.

    Raises:
        SampleInvalid: no question, no tests, or tests and solutions that are no JSON of the known form.
    """
    question, starter = entry.get("question"), entry.get("starter_code") or ""
    if not isinstance(question, str) or not question.strip():
        raise SampleInvalid("the row has no question", value=sorted(map(str, entry)), expected="a text")
    tests = _parse_tests(_parse_json(entry.get("input_output"), "input_output"))
    solutions = _parse_json(entry.get("solutions"), "solutions") or []
    if not isinstance(solutions, list) or not all(isinstance(solution, str) for solution in solutions):
        raise SampleInvalid("solutions is not a list of programs", value=str(solutions)[:80], expected="texts")
    request = _FUNCTION_REQUEST if tests.function or starter else _PROGRAM_REQUEST
    text = "\n\n".join(filter(None, (question.strip(), request, str(starter).strip("\n"))))
    return text, tests, tuple(solution for solution in solutions if solution.strip())


def _parse_json(value: Any, name: str) -> Any:
    """Parses a text of JSON; returns other values as they are, and None for an empty text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except (ValueError, RecursionError) as error:
        raise SampleInvalid(f"{name} is not JSON", value=str(error)[:200], expected="JSON in a text") from error


def _parse_tests(examples: Any) -> Exchanges:
    if not examples:
        raise SampleInvalid("the problem has no tests", value=examples, expected="input_output")
    inputs, expected = (
        (examples.get("inputs"), examples.get("outputs")) if isinstance(examples, Mapping) else (None, None)
    )
    if not isinstance(inputs, list) or not isinstance(expected, list) or not inputs or len(inputs) != len(expected):
        raise SampleInvalid(
            "tests have an unknown format", value=str(examples)[:80], expected="as many inputs as outputs"
        )
    function = examples.get("fn_name") or ""
    if function:
        if not isinstance(function, str) or not function.isidentifier():
            raise SampleInvalid("tests have no function name", value=function, expected="its name")
        if not all(isinstance(arguments, list) for arguments in inputs):
            raise SampleInvalid("inputs are not lists of arguments", value=str(inputs)[:80], expected="lists of them")
        return Exchanges(tuple(inputs), tuple(expected), function)
    return Exchanges(tuple(map(_to_text, inputs)), tuple(map(_to_text, expected)))


def _to_text(value: Any) -> str:
    """Converts a value to text; some texts are lists of lines."""
    if isinstance(value, list):
        return "\n".join(map(_to_text, value))
    if isinstance(value, (str, int, float)):
        return str(value)
    raise SampleInvalid("an input or output is not text", value=str(value)[:80], expected="text, or lines")


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
            "no problems found", value=str(path), expected="a file of HumanEval, MBPP or APPS, or a folder"
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
        SampleInvalid: no object, no known layout, no tests, or cannot read the tests.
    """
    if isinstance(entry, SampleInvalid):
        raise entry
    if not isinstance(entry, Mapping):
        raise SampleInvalid("the row is not an object", value=str(entry)[:80], expected="a JSON object")
    parse_entry = (
        _parse_humaneval if "entry_point" in entry else _parse_apps if "input_output" in entry else _parse_mbpp
    )
    try:
        return parse_entry(entry, file, index)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SampleInvalid("cannot read the tests", value=str(error), expected="Python") from error


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
    raise SampleInvalid(f"the row has no {name}", value=sorted(map(str, entry)), expected="a text")


def _get_lines(entry: Mapping[str, Any], name: str, *, needed: bool = True) -> list[str]:
    value = entry.get(name, [])
    if isinstance(value, list) and all(isinstance(line, str) for line in value) and (value or not needed):
        return value
    raise SampleInvalid(f"the row has no {name}", value=str(value)[:80], expected="a list of lines of Python")


def _digest(*texts: str) -> str:
    return hashlib.sha256(canonical_json(list(texts)).encode()).hexdigest()[:16]
