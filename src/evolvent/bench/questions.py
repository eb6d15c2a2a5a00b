"""Data of evaluators: JSON lines with texts to be predicted, questions with choices, and questions with references.

    {"text": "..."}                                              predicted from its beginning
    {"messages": [{"role": "user", "content": "..."}, ...]}      what the assistant says is predicted
    {"prompt": "...", "choices": ["...", "..."], "answer": 0}    answer: the place of a choice, or its text
    {"prompt": "...", "references": ["...", "..."]}              or "reference": "..."

Every mistake is named by its line, all of a file at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from evolvent.errors import ConfigError, Problem, SampleInvalid, unknown
from evolvent.messages import Message

__all__ = ["Choice", "Question", "Said", "Text", "read_choices", "read_questions", "read_texts"]

T = TypeVar("T")
_MOST_PROBLEMS = 20  # lines of one file that are told of


@dataclass(frozen=True, slots=True)
class Text:
    """A text whose every token is predicted from those before it."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """A conversation: instructions, and (what the user said, what the assistant replied) in turn."""

    system: str
    exchanges: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A question with given continuations; `answer` is the place of the right one."""

    prompt: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer is written freely; any of the references is right."""

    prompt: str
    references: tuple[str, ...]


def read_texts(path: Path) -> list[Text | Said]:
    """Texts and conversations, one a line.

    Raises:
        ConfigError: naming every line that is neither, or a file without any.
    """
    return _read(path, _text, ("text", "messages"))


def read_choices(path: Path) -> list[Choice]:
    """Questions with choices, one a line. Raises ConfigError as `read_texts` does."""
    return _read(path, _choice, ("prompt", "choices", "answer"))


def read_questions(path: Path) -> list[Question]:
    """Questions with references, one a line. Raises ConfigError as `read_texts` does."""
    return _read(path, _question, ("prompt", "reference", "references"))


def _read(path: Path, parse: Callable[[Mapping[str, Any]], T], keys: tuple[str, ...]) -> list[T]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        told = getattr(error, "strerror", None) or f"is no UTF-8 text: {error}"
        raise ConfigError([Problem(str(path), f"cannot be read: {told}")]) from error
    found: list[T] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(parse(_row(line, keys)))
        except SampleInvalid as error:
            problems.append(Problem(f"{path}:{number}", str(error)))
    if len(problems) > _MOST_PROBLEMS:
        more = Problem(str(path), f"{len(problems) - _MOST_PROBLEMS} more lines are wrong")
        problems = [*problems[:_MOST_PROBLEMS], more]
    if not problems and not found:
        problems = [Problem(str(path), "holds no line", f"write JSON lines with {', '.join(keys)}")]
    if problems:
        raise ConfigError(problems)
    return found


def _row(line: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SampleInvalid(f"is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise SampleInvalid("is no object", value=_told(row), expected=f"an object with {', '.join(keys)}")
    strange = [unknown("key", name, keys) for name in row if name not in (*keys, "id", "kind")]
    if strange:
        raise SampleInvalid("; ".join(problem.what for problem in strange), hint=strange[0].hint)
    return row


def _string(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise SampleInvalid(f"{name} is no text", value=_told(value), expected="a text that is not empty")
    return value


def _strings(row: Mapping[str, Any], name: str, *, least: int) -> tuple[str, ...]:
    value = row.get(name)
    if not isinstance(value, list) or len(value) < least or not all(isinstance(one, str) and one for one in value):
        raise SampleInvalid(f"{name} are no texts", value=_told(value), expected=f"a list of {least} or more texts")
    return tuple(value)


def _told(value: object) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _text(row: Mapping[str, Any]) -> Text | Said:
    if ("text" in row) == ("messages" in row):
        raise SampleInvalid("neither or both of text and messages", value=sorted(row), expected="one of them")
    if "text" in row:
        return Text(_string(row, "text"))
    given = row["messages"]
    messages = [Message.of_openai(one) for one in given] if isinstance(given, list) else []
    system = messages.pop(0).text if messages and messages[0].role in ("system", "developer") else ""
    roles = [message.role for message in messages]
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2) or any(message.calls for message in messages):
        raise SampleInvalid(
            "messages that are no conversation",
            value=", ".join(roles[:6]) or _told(given),
            expected="an optional system message, then user and assistant in turn",
        )
    texts = [message.text for message in messages]
    return Said(system, tuple(zip(texts[::2], texts[1::2], strict=True)))


def _choice(row: Mapping[str, Any]) -> Choice:
    prompt, choices, answer = _string(row, "prompt"), _strings(row, "choices", least=2), row.get("answer")
    if len(set(choices)) < len(choices):
        raise SampleInvalid("two choices are the same text", value=_told(list(choices)))
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise SampleInvalid(
            "answer is no choice",
            value=_told(answer),
            expected=f"one of the choices, or its place, 0 to {len(choices) - 1}",
        )
    return Choice(prompt, choices, answer)


def _question(row: Mapping[str, Any]) -> Question:
    if ("reference" in row) == ("references" in row):
        raise SampleInvalid("neither or both of reference and references", value=sorted(row), expected="one of them")
    prompt = _string(row, "prompt")
    if "reference" in row:
        return Question(prompt, (_string(row, "reference"),))
    return Question(prompt, _strings(row, "references", least=1))
