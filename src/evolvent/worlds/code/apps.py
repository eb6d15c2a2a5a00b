"""Rows of APPS (Hendrycks et al. 2021, 2105.09938), in both forms in which it is published.

As rows (codeparrot/apps): `{"problem_id" or "id", "question", "solutions", "input_output", "difficulty", "url",
"starter_code"}`, where solutions and input_output are JSON in a text. As folders: `train|test/NUMBER/` with
`question.txt`, `solutions.json`, `input_output.json`, `metadata.json` and `starter_code.py`; all but the question may
be missing. A problem without tests cannot be judged and is left out; one without solutions is a task like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evolvent.errors import SampleInvalid
from evolvent.grade.exchanges import Exchanges

__all__ = ["apps_folders", "folder_entry", "parse_apps_entry"]

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
        raise SampleInvalid(
            "a problem that cannot be read", value=str(error)[:200], expected="text and JSON"
        ) from error
    extra_fields = {name: metadata.get(name) for name in ("difficulty", "url")} if isinstance(metadata, Mapping) else {}
    return {"input_output": "", **texts, **extra_fields, "problem_id": folder.name, "question": question}


def parse_apps_entry(entry: Mapping[str, object]) -> tuple[str, Exchanges, tuple[str, ...]]:
    """Parses the question, the tests and the solutions of a row.

    Raises:
        SampleInvalid: no question, no tests, or tests and solutions that are no JSON of the known form.
    """
    question, starter = entry.get("question"), entry.get("starter_code") or ""
    if not isinstance(question, str) or not question.strip():
        raise SampleInvalid("a row without question", value=sorted(map(str, entry)), expected="a text")
    tests = _parse_tests(_parse_json(entry.get("input_output"), "input_output"))
    solutions = _parse_json(entry.get("solutions"), "solutions") or []
    if not isinstance(solutions, list) or not all(isinstance(solution, str) for solution in solutions):
        raise SampleInvalid("solutions that are no list of programs", value=str(solutions)[:80], expected="texts")
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
        raise SampleInvalid(f"{name} that is no JSON", value=str(error)[:200], expected="JSON in a text") from error


def _parse_tests(examples: Any) -> Exchanges:
    if not examples:
        raise SampleInvalid("a problem without tests", value=examples, expected="input_output")
    inputs, expected = (
        (examples.get("inputs"), examples.get("outputs")) if isinstance(examples, Mapping) else (None, None)
    )
    if not isinstance(inputs, list) or not isinstance(expected, list) or not inputs or len(inputs) != len(expected):
        raise SampleInvalid("tests of another form", value=str(examples)[:80], expected="as many inputs as outputs")
    function = examples.get("fn_name") or ""
    if function:
        if not isinstance(function, str) or not function.isidentifier():
            raise SampleInvalid("tests of no function", value=function, expected="its name")
        if not all(isinstance(arguments, list) for arguments in inputs):
            raise SampleInvalid("inputs that are no arguments", value=str(inputs)[:80], expected="lists of them")
        return Exchanges(tuple(inputs), tuple(expected), function)
    return Exchanges(tuple(map(_to_text, inputs)), tuple(map(_to_text, expected)))


def _to_text(value: Any) -> str:
    """Converts a value to text; some texts are lists of lines."""
    if isinstance(value, list):
        return "\n".join(map(_to_text, value))
    if isinstance(value, (str, int, float)):
        return str(value)
    raise SampleInvalid("an input or output that is no text", value=str(value)[:80], expected="text, or lines")
