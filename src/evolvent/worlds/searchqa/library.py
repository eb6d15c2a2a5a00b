"""A user's collection: documents and questions read from JSON lines, and an index over the documents.

The formats are common for search agents: documents as `{"id", "contents"}` with the title in the first line
(FlashRAG, Search-R1), or as `{"id", "title", "text"}`; questions as `{"question", "golden_answers"}`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from evolvent.data.jsonl import iterate_lines, parse_json
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.worlds.base import SPLITS
from evolvent.worlds.searchqa.answers import normalize_answer
from evolvent.worlds.searchqa.bm25 import Index
from evolvent.worlds.searchqa.pages import Document

__all__ = ["Library", "Question", "read_library"]

_MAX_QUOTED_ROWS = 3  # bad rows quoted where a file has no good one
_ANSWERS = ("answer", "answers", "golden_answers")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a collection.

    Args:
        text: the question.
        answers: the gold answers; any of them is right.
        kind: the category of the question.
        split: "train", "dev" or "test"; None: by the hash of the question.
        queries: searches that lead to the answer, if they are known.
    """

    text: str
    answers: tuple[str, ...]
    kind: str = "question"
    split: str | None = None
    queries: tuple[str, ...] = ()


class Library:
    """A collection of documents and the questions about it.

    Args:
        documents: in the order in which ties are broken.
        questions: no two of them are the same.
        invalid: the problems of rows that were left out.
    Attributes:
        index: the index over the documents.
        digest: 16 hex digits that identify the documents.

    Raises:
        ConfigError: no document contains a word.
    """

    def __init__(
        self, documents: Sequence[Document], questions: Sequence[Question], *, invalid: Sequence[SampleInvalid] = ()
    ) -> None:
        self.documents, self.questions, self.invalid = tuple(documents), tuple(questions), tuple(invalid)
        self.index = Index(document.contents for document in self.documents)
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(json.dumps([document.id, document.contents]).encode())
        self.digest = digest.hexdigest()[:16]


def read_library(corpus: str | Path, questions: str | Path) -> Library:
    """Reads a library from two files of JSON lines; blank lines are skipped.

    A document has an `id` (text or a whole number, different in each) and its words: `contents`, whose first line
    is the title if there are more lines, or `text` and perhaps a `title`. Ties in a search go by id, whole numbers
    first. A question has a `question` and its right answers (`answer`, `answers` or `golden_answers`: one, or a
    list). It may have a `kind` or `type`, a `split` (train, dev or test), and `queries` (searches that lead to the
    answer).

    Returns:
        The library; its `invalid` names each row that was left out, with the file and the row's number from 1.

    Raises:
        ConfigError: a file cannot be read or has no valid row.
    """
    problems: list[Problem] = []
    invalid: list[SampleInvalid] = []
    documents = _read_valid_rows(Path(corpus), _DocumentReader(), problems=problems, invalid=invalid)
    questions_read = _read_valid_rows(Path(questions), _QuestionReader(), problems=problems, invalid=invalid)
    if problems:
        raise ConfigError(problems)
    documents.sort(key=_sort_key)
    return Library(documents, questions_read, invalid=invalid)


def _sort_key(document: Document) -> tuple[bool, int, str]:
    is_number = document.id.isascii() and document.id.isdigit() and len(document.id) < 19
    return not is_number, int(document.id) if is_number else 0, document.id


def _read_valid_rows(
    path: Path, parse: Callable[[Mapping[str, Any]], T], *, problems: list[Problem], invalid: list[SampleInvalid]
) -> list[T]:
    """Reads the valid rows of a file; problems of other rows go to `invalid`, problems of the file to `problems`."""
    valid_rows: list[T] = []
    errors: list[str] = []
    try:
        with path.open("rb") as file:
            for number, line in iterate_lines(file):
                try:
                    valid_rows.append(parse(_parse_object(line)))
                except SampleInvalid as error:
                    errors.append(f"row {number}: {error}")
    except OSError as error:
        problems.append(Problem(str(path), f"cannot be read: {error.strerror}", "pass a file of JSON lines"))
        return valid_rows
    invalid += [SampleInvalid(f"{path} {message}") for message in errors]
    if not valid_rows:
        message = f"no valid row: {'; '.join(errors[:_MAX_QUOTED_ROWS])}" if errors else "no row"
        problems.append(Problem(str(path), message, "write one JSON object per line"))
    return valid_rows


def _parse_object(line: bytes) -> Mapping[str, Any]:
    row = parse_json(line)
    try:
        json.dumps(row, ensure_ascii=False).encode()  # half surrogates cannot be written anywhere again
    except ValueError as error:
        raise SampleInvalid(f"not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise SampleInvalid("not a JSON object", value=row, expected='{"...": ...}')
    return row


class _DocumentReader:
    """Reads a document from each row; ids must differ."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def __call__(self, row: Mapping[str, Any]) -> Document:
        document_id = row.get("id")
        if not isinstance(document_id, str | int) or isinstance(document_id, bool) or document_id == "":
            raise SampleInvalid("the document has no id", value=document_id, expected="text or a whole number")
        title, text = row.get("title", ""), row.get("contents", row.get("text"))
        if not isinstance(text, str) or not isinstance(title, str) or not text.strip():
            raise SampleInvalid(
                f"document {document_id} has no text", value=text, expected='words in "text" or "contents"'
            )
        if str(document_id) in self._ids:
            raise SampleInvalid("duplicate document id", value=document_id, expected="a different id for each document")
        self._ids.add(str(document_id))
        first, newline, remaining_text = text.strip().partition("\n")
        if "contents" in row and not title and newline:
            title, text = first, remaining_text
        title, text = title.strip(), text.strip()
        answer_name = _clean_title(title)
        return Document(str(document_id), title, text, (answer_name,) if answer_name else ())


def _clean_title(title: str) -> str:
    """Returns a title as an answer or a query gives it: in one line, without the quotes that collections put around
    it.
    """
    return " ".join(title.strip().strip('"').split())


class _QuestionReader:
    """Reads a question from each row; questions must differ in more than capitals, punctuation and articles."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def __call__(self, row: Mapping[str, Any]) -> Question:
        text = row.get("question")
        if not isinstance(text, str) or not normalize_answer(text):
            raise SampleInvalid("the row has no question", value=text, expected='words in "question"')
        raw_answers = next((row[key] for key in _ANSWERS if key in row), None)
        answers = _parse_texts(raw_answers)
        if not answers:
            raise SampleInvalid(
                f"question {text!r} has no answer", value=raw_answers, expected="a text or a list of texts"
            )
        kind, split = row.get("kind", row.get("type", "question")), row.get("split")
        if not isinstance(kind, str) or not kind:
            raise SampleInvalid(f"the kind of question {text!r} is not text", value=kind, expected="a word")
        if split is not None and split not in SPLITS:
            raise SampleInvalid(f"the split of {text!r} is unknown", value=split, expected=", ".join(SPLITS))
        queries = _parse_texts(row.get("queries", []))
        if queries is None:
            raise SampleInvalid(
                f"the queries of question {text!r} are invalid", value=row["queries"], expected="a list of texts"
            )
        if normalize_answer(text) in self._asked:
            raise SampleInvalid("duplicate question", value=text, expected="different questions")
        self._asked.add(normalize_answer(text))
        return Question(" ".join(text.split()), answers, kind, split, queries)


def _parse_texts(value: object) -> tuple[str, ...] | None:
    """Returns one text or number, or a list of them, as texts without empty ones; None for anything else."""
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str | int | float) and not isinstance(entry, bool) for entry in entries):
        return None
    return tuple(" ".join(str(entry).split()) for entry in entries if normalize_answer(str(entry)))
