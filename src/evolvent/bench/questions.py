"""Data of evaluators: JSON lines with texts to predict, questions with choices, and questions with references.

    {"text": "..."}                                              predicted from its beginning
    {"messages": [{"role": "user", "content": "..."}, ...]}      the assistant's messages are predicted
    {"prompt": "...", "choices": ["...", "..."], "answer": 0}    answer: the index of a choice, or its text
    {"prompt": "...", "references": ["...", "..."]}              or "reference": "..."

Every mistake is reported with its line, all of a file at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from evolvent.data.jsonl import parse_json
from evolvent.errors import ConfigError, Problem, SampleInvalid, unknown_name_problem
from evolvent.messages import Message

__all__ = ["ChoiceQuestion", "Conversation", "OpenQuestion", "Text", "read_choices", "read_questions", "read_texts"]

T = TypeVar("T")
_MAX_PROBLEMS = 20  # lines of one file that are told of


@dataclass(frozen=True, slots=True)
class Text:
    """A text whose every token is predicted from those before it."""

    text: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation: instructions, and pairs of user and assistant messages."""

    system: str
    exchanges: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A question with given continuations; `answer` is the index of the right one."""

    prompt: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question with a free answer; any of the references is right."""

    prompt: str
    references: tuple[str, ...]


def read_texts(path: Path) -> list[Text | Conversation]:
    """Reads texts and conversations, one a line.

    Raises:
        ConfigError: naming every line that is neither, or a file without any.
    """
    return _read_lines(path, _parse_text, ("text", "messages"))


def read_choices(path: Path) -> list[ChoiceQuestion]:
    """Reads questions with choices, one a line. Raises ConfigError as `read_texts` does."""
    return _read_lines(path, _parse_choice, ("prompt", "choices", "answer"))


def read_questions(path: Path) -> list[OpenQuestion]:
    """Reads questions with references, one a line. Raises ConfigError as `read_texts` does."""
    return _read_lines(path, _parse_question, ("prompt", "reference", "references"))


def _read_lines(path: Path, parse: Callable[[Mapping[str, Any]], T], keys: tuple[str, ...]) -> list[T]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or f"not UTF-8 text: {error}"
        raise ConfigError([Problem(str(path), f"cannot be read: {reason}")]) from error
    entries: list[T] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entries.append(parse(_parse_row(line, keys)))
        except SampleInvalid as error:
            problems.append(Problem(f"{path}:{number}", str(error)))
    if len(problems) > _MAX_PROBLEMS:
        summary = Problem(str(path), f"{len(problems) - _MAX_PROBLEMS} more lines are wrong")
        problems = [*problems[:_MAX_PROBLEMS], summary]
    if not problems and not entries:
        problems = [Problem(str(path), "has no lines", f"write JSON lines with {', '.join(keys)}")]
    if problems:
        raise ConfigError(problems)
    return entries


def _parse_row(line: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    row = parse_json(line)
    if not isinstance(row, dict):
        raise SampleInvalid("not a JSON object", value=_shorten(row), expected=f"an object with {', '.join(keys)}")
    unknown_keys = [unknown_name_problem("key", name, keys) for name in row if name not in (*keys, "id", "kind")]
    if unknown_keys:
        raise SampleInvalid("; ".join(problem.what for problem in unknown_keys), hint=unknown_keys[0].hint)
    return row


def _read_string(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise SampleInvalid(f"{name} is not text", value=_shorten(value), expected="text that is not empty")
    return value


def _read_strings(row: Mapping[str, Any], name: str, *, min_count: int) -> tuple[str, ...]:
    value = row.get(name)
    if (
        not isinstance(value, list)
        or len(value) < min_count
        or not all(isinstance(text, str) and text for text in value)
    ):
        raise SampleInvalid(
            f"{name} is not a list of texts", value=_shorten(value), expected=f"a list of {min_count} or more texts"
        )
    return tuple(value)


def _shorten(value: object) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _parse_text(row: Mapping[str, Any]) -> Text | Conversation:
    if ("text" in row) == ("messages" in row):
        raise SampleInvalid("set exactly one of text and messages", value=sorted(row), expected="one of them")
    if "text" in row:
        return Text(_read_string(row, "text"))
    raw_messages = row["messages"]
    messages = (
        [Message.of_openai(raw_message) for raw_message in raw_messages] if isinstance(raw_messages, list) else []
    )
    system = messages.pop(0).text if messages and messages[0].role in ("system", "developer") else ""
    roles = [message.role for message in messages]
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2) or any(message.calls for message in messages):
        raise SampleInvalid(
            "messages do not form a conversation",
            value=", ".join(roles[:6]) or _shorten(raw_messages),
            expected="an optional system message, then user and assistant in turn",
        )
    texts = [message.text for message in messages]
    return Conversation(system, tuple(zip(texts[::2], texts[1::2], strict=True)))


def _parse_choice(row: Mapping[str, Any]) -> ChoiceQuestion:
    prompt, choices, answer = _read_string(row, "prompt"), _read_strings(row, "choices", min_count=2), row.get("answer")
    if len(set(choices)) < len(choices):
        raise SampleInvalid("two choices are the same text", value=_shorten(list(choices)))
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise SampleInvalid(
            "answer is not one of the choices",
            value=_shorten(answer),
            expected=f"one of the choices, or its index, 0 to {len(choices) - 1}",
        )
    return ChoiceQuestion(prompt, choices, answer)


def _parse_question(row: Mapping[str, Any]) -> OpenQuestion:
    if ("reference" in row) == ("references" in row):
        raise SampleInvalid("set exactly one of reference and references", value=sorted(row), expected="one of them")
    prompt = _read_string(row, "prompt")
    if "reference" in row:
        return OpenQuestion(prompt, (_read_string(row, "reference"),))
    return OpenQuestion(prompt, _read_strings(row, "references", min_count=1))
