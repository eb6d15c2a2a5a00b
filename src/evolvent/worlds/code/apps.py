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

__all__ = ["apps_folders", "apps_parts", "folder_entry"]

_QUESTION = "question.txt"
_FILES = {"solutions": "solutions.json", "input_output": "input_output.json", "starter_code": "starter_code.py"}
_READS = "Write a whole program: it reads standard input and prints the answer."
_CALLED = "Complete the code that is given."


def apps_folders(path: Path) -> list[Path]:
    """The folders of problems below a folder, in the order of their paths; none: it is no APPS in folders."""
    return sorted(one.parent for one in path.rglob(_QUESTION)) if path.is_dir() else []


def folder_entry(folder: Path) -> Mapping[str, Any]:
    """The row that a folder of one problem is.

    Raises:
        SampleInvalid: a file of it cannot be read.
    """
    try:
        found = {
            name: (folder / file).read_text(encoding="utf-8-sig")
            for name, file in _FILES.items()
            if (folder / file).is_file()
        }
        about = folder / "metadata.json"
        more = json.loads(about.read_text(encoding="utf-8-sig")) if about.is_file() else {}
        question = (folder / _QUESTION).read_text(encoding="utf-8-sig")
    except (OSError, ValueError, RecursionError) as error:
        raise SampleInvalid(
            "a problem that cannot be read", value=str(error)[:200], expected="text and JSON"
        ) from error
    about_it = {name: more.get(name) for name in ("difficulty", "url")} if isinstance(more, Mapping) else {}
    return {"input_output": "", **found, **about_it, "problem_id": folder.name, "question": question}


def apps_parts(entry: Mapping[str, Any]) -> tuple[str, Exchanges, tuple[str, ...]]:
    """What is asked, what judges it, and the solutions of a row.

    Raises:
        SampleInvalid: no question, no tests, or tests and solutions that are no JSON of the known form.
    """
    question, starter = entry.get("question"), entry.get("starter_code") or ""
    if not isinstance(question, str) or not question.strip():
        raise SampleInvalid("a row without question", value=sorted(map(str, entry)), expected="a text")
    tests = _tests(_json(entry.get("input_output"), "input_output"))
    solutions = _json(entry.get("solutions"), "solutions") or []
    if not isinstance(solutions, list) or not all(isinstance(one, str) for one in solutions):
        raise SampleInvalid("solutions that are no list of programs", value=str(solutions)[:80], expected="texts")
    how = _CALLED if tests.function or starter else _READS
    text = "\n\n".join(filter(None, (question.strip(), how, str(starter).strip("\n"))))
    return text, tests, tuple(one for one in solutions if one.strip())


def _json(value: Any, name: str) -> Any:
    """A value, or what a text of JSON holds; an empty text: None."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except (ValueError, RecursionError) as error:
        raise SampleInvalid(f"{name} that is no JSON", value=str(error)[:200], expected="JSON in a text") from error


def _tests(found: Any) -> Exchanges:
    if not found:
        raise SampleInvalid("a problem without tests", value=found, expected="input_output")
    given, expected = (found.get("inputs"), found.get("outputs")) if isinstance(found, Mapping) else (None, None)
    if not isinstance(given, list) or not isinstance(expected, list) or not given or len(given) != len(expected):
        raise SampleInvalid("tests of another form", value=str(found)[:80], expected="as many inputs as outputs")
    function = found.get("fn_name") or ""
    if function:
        if not isinstance(function, str) or not function.isidentifier():
            raise SampleInvalid("tests of no function", value=function, expected="its name")
        if not all(isinstance(one, list) for one in given):
            raise SampleInvalid("inputs that are no arguments", value=str(given)[:80], expected="lists of them")
        return Exchanges(tuple(given), tuple(expected), function)
    return Exchanges(tuple(map(_text, given)), tuple(map(_text, expected)))


def _text(value: Any) -> str:
    """A text; some are given as lines."""
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    if isinstance(value, (str, int, float)):
        return str(value)
    raise SampleInvalid("an input or output that is no text", value=str(value)[:80], expected="text, or lines")
