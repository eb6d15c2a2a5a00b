"""One question and its answer: the scene that all episodes of a task share, and the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evolvent.errors import EnvLost
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, StateEnv
from evolvent.worlds.deferred import DeferredInfo
from evolvent.worlds.sql.database import MEMORY_LIMITS, Answer, Database, Row
from evolvent.worlds.sql.equal import Comparison, same_result
from evolvent.worlds.sql.grammar import extract_query
from evolvent.worlds.sql.lexer import is_ordered, remove_spaces

__all__ = ["DONE", "NUMBERS", "Scene", "SqlEnv", "render_answer", "render_closed"]

DONE = "done"
"""What ends an episode of several rounds: the last query that was answered counts."""
NUMBERS = range(100)
"""The whole numbers that a closed vocabulary has words for."""

_MAX_RESULT_LENGTH = 100  # characters of a result; AgentGym's number
_MAX_RENDERED_ROWS = 60  # rows that surely have more characters than that
_MAX_RESULT_WORDS = 24  # of a result in a closed vocabulary
_MAX_ERROR_WORDS = 16
_MAX_CACHED_QUERIES = 32  # queries per task of which the outcome is kept
_MAX_CACHED_LENGTH = 500  # characters of such a query
_WORD = re.compile(r"\w+|[^\w\s]")


def render_answer(answer: Answer) -> str:
    """Renders an answer like AgentGym's server: the rows as Python prints them, cut to 100 characters; or the error."""
    if answer.error:
        return answer.error
    text = str(list(answer.rows[:_MAX_RENDERED_ROWS]))
    return text if len(text) <= _MAX_RESULT_LENGTH else f"{text[:_MAX_RESULT_LENGTH]}..."


def render_closed(answer: Answer, vocabulary: frozenset[str]) -> str:
    """Renders an answer in a closed vocabulary, `?` for other words: values by commas, rows by semicolons, cut in
    length.
    """
    if answer.error:
        return _truncate(_mask_unknown(answer.error, vocabulary), _MAX_ERROR_WORDS)
    rows = "; ".join(", ".join(map(_format_value, row)) for row in answer.rows[:_MAX_RENDERED_ROWS])
    return _truncate(_mask_unknown(rows, vocabulary), _MAX_RESULT_WORDS) if answer.rows else "no rows"


def _format_value(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.1f}" if 0 <= value < len(NUMBERS) - 1 else "?"
    return str(value)


def _mask_unknown(text: str, vocabulary: frozenset[str]) -> str:
    return _WORD.sub(lambda token: token[0] if token[0] in vocabulary else "?", text)


def _truncate(text: str, max_words: int) -> str:
    """Returns the first words of a text."""
    ends = [token.end() for token in _WORD.finditer(text)]
    return text if len(ends) <= max_words else text[: ends[max_words - 1]]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a text: its observation, and whether it is the right answer (None: not an answer)."""

    observation: str
    is_right: bool | None


@dataclass(slots=True)
class Scene:
    """The state that all episodes of a task share.

    Args:
        first_observation: the first observation.
        gold: the query that answers the question.
        list_queries: returns queries to choose from; it is called once, when they are first read.
        open: opens the database; the caller closes it.
        compare: the rule by which two results are equal.
        vocabulary: the closed vocabulary of all observations; None: it is open.
        run_gold: computes the rows of the gold query without opening the database; None: they are read from it.
        cacheable: whether the outcome of a query may be cached; False if the clock can be read.
    """

    first_observation: str
    gold: str
    list_queries: Callable[[], tuple[str, ...]]
    open: Callable[[], Database]
    compare: Comparison = "rows"
    vocabulary: frozenset[str] | None = None
    cacheable: bool = True
    run_gold: Callable[[], Sequence[Row]] | None = None
    _outcomes: dict[str, _Outcome] = field(default_factory=dict)
    _rows: Sequence[Row] | None = None
    _admissible: tuple[str, ...] | None = None

    def list_admissible(self) -> tuple[str, ...]:
        """Returns queries to choose from."""
        if self._admissible is None:
            self._admissible = self.list_queries()
        return self._admissible

    def get_cached(self, text: str) -> _Outcome | None:
        """Returns the cached outcome of a text, or None."""
        return self._outcomes.get(text)

    def evaluate(self, text: str, get_database: Callable[[], Database]) -> _Outcome:
        """Returns the outcome of a text; raises EnvLost if the database does not answer."""
        if text == self.gold and self.run_gold is not None:
            self._rows = self.run_gold()
            outcome = self._grade(Answer(self._rows), self._rows)
        else:
            outcome = self._run_text(text, get_database())
        if self.cacheable and len(text) <= _MAX_CACHED_LENGTH and len(self._outcomes) < _MAX_CACHED_QUERIES:
            self._outcomes[text] = outcome
        return outcome

    def _run_text(self, text: str, database: Database) -> _Outcome:
        if text == self.gold or text in (self._admissible or ()):  # checks would not find anything in them
            answer = database.run(text)
        else:
            query = extract_query(text)[0]
            answer = database.ask(
                remove_spaces(query) if self.vocabulary is not None and len(query) <= MEMORY_LIMITS.text else query
            )
        if answer.error:
            return _Outcome(self._render(answer), None)
        return self._grade(answer, answer.rows if text == self.gold else self._gold_rows(database))

    def _grade(self, answer: Answer, gold: Sequence[Row]) -> _Outcome:
        is_right = gold is answer.rows or same_result(
            gold, answer.rows, ordered=is_ordered(self.gold), compare=self.compare
        )
        return _Outcome(self._render(answer), is_right)

    def _render(self, answer: Answer) -> str:
        return render_answer(answer) if self.vocabulary is None else render_closed(answer, self.vocabulary)

    def _gold_rows(self, database: Database) -> Sequence[Row]:
        rows = self._rows
        if rows is None:
            answer = database.run(self.gold)
            if answer.error:
                raise EnvLost(f"the gold query of this task has no result ({answer.error})", value=self.gold[:200])
            rows = answer.rows
            if self.cacheable:
                self._rows = rows
        return rows


_State = tuple[int, _Outcome | None]
"""The number of turns so far, and the last answered query. The database never changes."""


class SqlEnv(StateEnv[_State]):
    """The environment of one question. The first query that is not cached opens the database; the end closes it.

    With one round, the first query that the database answers is the answer, right or wrong. With several, a query
    shows its result; `done`, or the last round, makes the last answered query the answer. A text that is not a
    query, or that the database refuses, uses a round and reports the reason.
    """

    def __init__(self, task: Task, scene: Scene, *, rounds: int = 1, penalty: float = 0.0) -> None:
        super().__init__(task, (0, None))
        self._scene, self._rounds, self._penalty = scene, rounds, penalty
        self._database: Database | None = None

    def _observe_start(self) -> tuple[Value, Info]:
        return self._scene.first_observation, self._info(None)

    def _transition(self, state: _State, action: Value) -> tuple[_State, Reply]:
        turn, last = state
        text = action if isinstance(action, str) else str(action)
        if last is not None and text.strip().lower() == DONE:
            return state, self._finish(last, self._info(last))
        outcome = self._scene.get_cached(text) or self._scene.evaluate(text, self._get_database)
        if outcome.is_right is None:
            info = self._info(last).with_fields(invalid=True)
            return (turn + 1, last), (outcome.observation, self._penalty, False, False, info)
        last = outcome if self._rounds > 1 else None
        if turn + 1 >= self._rounds:
            return (turn + 1, last), self._finish(outcome, self._info(last))
        return (turn + 1, last), (outcome.observation, 0.0, False, False, self._info(last))

    def _get_database(self) -> Database:
        if self._database is None:
            self._database = self._scene.open()
        return self._database

    def _finish(self, outcome: _Outcome, info: Info) -> Reply:
        self.close()
        return outcome.observation, float(outcome.is_right or False), True, False, info

    def _info(self, last: _Outcome | None) -> DeferredInfo:
        return DeferredInfo(self._scene.list_admissible if last is None else self._list_with_done, {})

    def _list_with_done(self) -> tuple[str, ...]:
        return (*self._scene.list_admissible(), DONE)

    def close(self) -> None:
        super().close()
        if self._database is not None:
            self._database.close()
            self._database = None
