"""One question and its answer: the scene that all episodes of a task share, and the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evolvent.errors import EnvLost
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, StateEnv
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
        admissible: queries to choose from.
        open: opens the database; the caller closes it.
        compare: the rule by which two results are equal.
        vocabulary: the closed vocabulary of all observations; None: it is open.
        cacheable: whether the outcome of a query may be cached; False if the clock can be read.
    """

    first_observation: str
    gold: str
    admissible: tuple[str, ...]
    open: Callable[[], Database]
    compare: Comparison = "rows"
    vocabulary: frozenset[str] | None = None
    cacheable: bool = True
    _outcomes: dict[str, _Outcome] = field(default_factory=dict)
    _rows: Sequence[Row] | None = None

    def get_cached(self, text: str) -> _Outcome | None:
        """Returns the cached outcome of a text, or None."""
        return self._outcomes.get(text)

    def evaluate(self, text: str, database: Database) -> _Outcome:
        """Returns the outcome of a text; raises EnvLost if the database does not answer."""
        outcome = self._run_text(text, database)
        if self.cacheable and len(text) <= _MAX_CACHED_LENGTH and len(self._outcomes) < _MAX_CACHED_QUERIES:
            self._outcomes[text] = outcome
        return outcome

    def _run_text(self, text: str, database: Database) -> _Outcome:
        if text == self.gold or text in self.admissible:
            answer = database.run(text)
        else:
            query = extract_query(text)[0]
            answer = database.ask(
                remove_spaces(query) if self.vocabulary is not None and len(query) <= MEMORY_LIMITS.text else query
            )
        observation = render_answer(answer) if self.vocabulary is None else render_closed(answer, self.vocabulary)
        if answer.error:
            return _Outcome(observation, None)
        gold = answer.rows if text == self.gold else self._gold_rows(database)
        return _Outcome(
            observation, same_result(gold, answer.rows, ordered=is_ordered(self.gold), compare=self.compare)
        )

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
        outcome = self._scene.get_cached(text) or self._evaluate(text)
        if outcome.is_right is None:
            info = {**self._info(last), "invalid": True}
            return (turn + 1, last), (outcome.observation, self._penalty, False, False, info)
        last = outcome if self._rounds > 1 else None
        if turn + 1 >= self._rounds:
            return (turn + 1, last), self._finish(outcome, self._info(last))
        return (turn + 1, last), (outcome.observation, 0.0, False, False, self._info(last))

    def _evaluate(self, text: str) -> _Outcome:
        if self._database is None:
            self._database = self._scene.open()
        return self._scene.evaluate(text, self._database)

    def _finish(self, outcome: _Outcome, info: Info) -> Reply:
        self.close()
        return outcome.observation, float(outcome.is_right or False), True, False, info

    def _info(self, last: _Outcome | None) -> dict[str, object]:
        admissible = self._scene.admissible
        return {"admissible": admissible if last is None else (*admissible, DONE)}

    def close(self) -> None:
        super().close()
        if self._database is not None:
            self._database.close()
            self._database = None
