"""One question, asked and answered: what all episodes of a task share, and the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evolvent.errors import EnvLost, SessionGone
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, own_moment
from evolvent.worlds.sql.database import MEMORY, Answer, Database, Row
from evolvent.worlds.sql.equal import Comparison, same_result
from evolvent.worlds.sql.grammar import query_in
from evolvent.worlds.sql.lexer import is_ordered, unspaced

__all__ = ["DONE", "NUMBERS", "Scene", "SqlEnv", "shown", "shown_closed"]

DONE = "done"
"""What ends an episode of several rounds: the last query that was answered counts."""
NUMBERS = range(100)
"""The whole numbers that a closed vocabulary has words for."""

_CUT = 100  # characters of a result; AgentGym's number
_ENOUGH = 60  # rows that surely have more characters than that
_WORDS = 24  # of a result in a closed vocabulary
_ERROR_WORDS = 16
_KNOWN_TEXTS = 32  # queries per task of which the outcome is kept
_KNOWN_LENGTH = 500  # characters of such a query
_WORD = re.compile(r"\w+|[^\w\s]")


def shown(answer: Answer) -> str:
    """An answer as AgentGym's server shows it: the rows as Python writes them, cut to 100 characters; or the error."""
    if answer.error:
        return answer.error
    text = str(list(answer.rows[:_ENOUGH]))
    return text if len(text) <= _CUT else f"{text[:_CUT]}..."


def shown_closed(answer: Answer, words: frozenset[str]) -> str:
    """An answer in known words, `?` for every other: values by commas, rows by semicolons, cut to some words."""
    if answer.error:
        return _cut(_known(answer.error, words), _ERROR_WORDS)
    rows = "; ".join(", ".join(map(_told, row)) for row in answer.rows[:_ENOUGH])
    return _cut(_known(rows, words), _WORDS) if answer.rows else "no rows"


def _told(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.1f}" if 0 <= value < len(NUMBERS) - 1 else "?"
    return str(value)


def _known(text: str, words: frozenset[str]) -> str:
    return _WORD.sub(lambda found: found[0] if found[0] in words else "?", text)


def _cut(text: str, most: int) -> str:
    """The first words of a text."""
    ends = [found.end() for found in _WORD.finditer(text)]
    return text if len(ends) <= most else text[: ends[most - 1]]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a text came to: what is told of it, and whether it is the right answer (None: it is no answer)."""

    told: str
    right: bool | None


@dataclass(slots=True)
class Scene:
    """What all episodes of a task share.

    Args:
        first: the first observation.
        gold: the query that answers the question.
        admissible: queries to choose from.
        open: opens the database; the caller closes it.
        compare: when two results are the same.
        words: the closed vocabulary in which everything is told; None: it is open.
        kept: whether the outcome of a query may be kept; not where the clock can be read.
    """

    first: str
    gold: str
    admissible: tuple[str, ...]
    open: Callable[[], Database]
    compare: Comparison = "rows"
    words: frozenset[str] | None = None
    kept: bool = True
    _outcomes: dict[str, _Outcome] = field(default_factory=dict)
    _rows: Sequence[Row] | None = None

    def known(self, text: str) -> _Outcome | None:
        """The outcome of a text that was tried before."""
        return self._outcomes.get(text)

    def tried(self, text: str, database: Database) -> _Outcome:
        """The outcome of a text; raises EnvLost where the database does not answer."""
        outcome = self._try(text, database)
        if self.kept and len(text) <= _KNOWN_LENGTH and len(self._outcomes) < _KNOWN_TEXTS:
            self._outcomes[text] = outcome
        return outcome

    def _try(self, text: str, database: Database) -> _Outcome:
        if text == self.gold or text in self.admissible:
            answer = database.run(text)
        else:
            query = query_in(text)[0]
            answer = database.ask(unspaced(query) if self.words is not None and len(query) <= MEMORY.text else query)
        told = shown(answer) if self.words is None else shown_closed(answer, self.words)
        if answer.error:
            return _Outcome(told, None)
        gold = answer.rows if text == self.gold else self._gold(database)
        return _Outcome(told, same_result(gold, answer.rows, ordered=is_ordered(self.gold), compare=self.compare))

    def _gold(self, database: Database) -> Sequence[Row]:
        rows = self._rows
        if rows is None:
            answer = database.run(self.gold)
            if answer.error:
                raise EnvLost(f"the gold query of this task has no result ({answer.error})", value=self.gold[:200])
            rows = answer.rows
            if self.kept:
                self._rows = rows
        return rows


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: all that changes in an episode. The database never does."""

    task: str
    running: bool
    turn: int
    last: _Outcome | None


class SqlEnv:
    """One question. The database is opened at the first query that was not tried before, and closed at the end.

    With one round the first query that the database answers is the answer, right or wrong. With several, a query shows
    its result; `done`, or the last round, makes the last one that was answered the answer. A text that is no query, or
    that the database refuses, spends a round and tells why.
    """

    def __init__(self, task: Task, scene: Scene, *, rounds: int = 1, penalty: float = 0.0) -> None:
        self._task, self._scene = task, scene
        self._rounds, self._penalty = rounds, penalty
        self._database: Database | None = None
        self._running, self._turn = False, 0
        self._last: _Outcome | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._running, self._turn, self._last = True, 0, None
        return self._scene.first, self._info()

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        text = action if isinstance(action, str) else str(action)
        if self._last is not None and text.strip().lower() == DONE:
            return self._end(self._last)
        outcome = self._scene.known(text) or self._tried(text)
        self._turn += 1
        if outcome.right is None:
            return outcome.told, self._penalty, False, False, {**self._info(), "invalid": True}
        self._last = outcome if self._rounds > 1 else None
        if self._turn >= self._rounds:
            return self._end(outcome)
        return outcome.told, 0.0, False, False, self._info()

    def _tried(self, text: str) -> _Outcome:
        if self._database is None:
            self._database = self._scene.open()
        return self._scene.tried(text, self._database)

    def _end(self, outcome: _Outcome) -> Reply:
        info = self._info()
        self.close()
        return outcome.told, float(outcome.right or False), True, False, info

    def _info(self) -> dict[str, object]:
        admissible = self._scene.admissible
        return {"admissible": admissible if self._last is None else (*admissible, DONE)}

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running, self._turn, self._last)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        moment = own_moment(value, _Moment, self._task)
        self._running, self._turn, self._last = moment.running, moment.turn, moment.last

    def close(self) -> None:
        self._running = False
        if self._database is not None:
            self._database.close()
            self._database = None
