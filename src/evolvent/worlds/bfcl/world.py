"""BFCL as a world: every item is a task, all of them test tasks, and the score is the leaderboard's verdict.

Nobody may train on these items, so there are no train and dev panels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from evolvent.errors import ConfigError, Problem, SampleInvalid, VersionMismatch, unknown
from evolvent.grade.calls import Form, encode_calls
from evolvent.messages import Tool
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Env, Info, check_task, score_won
from evolvent.worlds.bfcl.episode import CallEnv, TurnsEnv
from evolvent.worlds.bfcl.files import read_documents, read_items
from evolvent.worlds.bfcl.items import CATEGORIES, IRRELEVANCE, MULTI_TURN, RELEVANCE, CallItem, TurnsItem, language_of
from evolvent.worlds.bfcl.multi_turn import MOST_STEPS, MultiTurn, padding_of, read_multi_turn
from evolvent.worlds.grammar import Grammar, Parsed
from evolvent.worlds.panel import check_names

__all__ = ["GROUPS", "Bfcl", "Reply", "group_of"]

GROUPS = ("non_live", "live", "irrelevance", "relevance", "multi_turn")
"""The tiers: the groups that the leaderboard's totals are made of."""
_BASE, _LONG_CONTEXT = "multi_turn_base", "multi_turn_long_context"
_NO_CALL = "That is all."
_FORMS = {
    "python": "[name(parameter=value, ...), ...]",
    "json": '[{"name": "...", "arguments": {...}}, ...]',
    "xml": '<tool_call>{"name": "...", "arguments": {...}}</tool_call>, once for every call',
}
_INSTRUCTIONS = (
    "Functions and a request follow. Call the functions that the request needs. If none fits, or something is missing, "
    "say so and call none. Write calls as {form} and nothing else. Results of calls are told; when nothing is left to "
    "call, answer without a call."
)


def group_of(category: str) -> str:
    """The tier of a category."""
    if category in MULTI_TURN:
        return "multi_turn"
    if category in RELEVANCE:
        return "relevance"
    if category in IRRELEVANCE:
        return "irrelevance"
    return "live" if category.startswith("live") else "non_live"


class Reply:
    """A whole reply is the action, also an empty one: a reply without calls means something here."""

    def parse(self, text: str) -> Parsed:
        return Parsed(text.strip())

    def render(self, parsed: Parsed) -> str:
        return parsed.action


class Bfcl:
    """The items of a folder in the layout of BFCL v4 (see `files`).

    A task of one turn is one reply. In a task of several turns, calls are done and answered, and a reply without calls
    ends the user's turn; the verdict comes with the last one. `info["tools"]` and `info["messages"]` hold the functions
    and the new messages of a moment in OpenAI's form, for agents with a chat template of their own; the observation is
    the same as text.

    Args:
        folder: the folder.
        form: how calls are written: "python", "json" or "xml". With "python", items of Java and JavaScript are answered
            with literals of their language.
        categories: which to read; all of them if nothing is said.
    Attributes:
        problems: items that could not be used, and why.
    Raises:
        ConfigError: an unknown form or category, a file that is missing, or a line that documents no function.
    """

    name = "bfcl"
    version = "1"
    tiers: tuple[str, ...] = GROUPS
    blocking = False
    reward_range = (0.0, 1.0)

    def __init__(
        self, folder: str | Path, *, form: Form = "python", categories: Sequence[str] = tuple(CATEGORIES)
    ) -> None:
        wrong = [unknown("category", name, CATEGORIES) for name in categories if name not in CATEGORIES]
        if form not in _FORMS:
            wrong.append(unknown("form", form, _FORMS))
        if wrong:
            raise ConfigError(wrong)
        self.form: Form = form
        self.grammar: Grammar = Reply()
        self._documents: Mapping[str, Sequence[Tool]] = {}
        # The long items need the base ones: the two together tell what was added (see `padding_of`).
        needed = dict.fromkeys([*categories, *([_BASE] if _LONG_CONTEXT in categories else [])])
        read = read_items(Path(folder), list(needed))
        self._calls = {item.id: item for item in read.calls}
        self._turns: dict[str, MultiTurn] = {}
        self._panels: dict[str, tuple[Task, ...]] = {}
        self.problems = read.problems
        if read.turns:
            self._documents = read_documents(Path(folder))
        self.instructions = _INSTRUCTIONS.format(form=_FORMS[form])
        padding = padding_of(read.turns)
        for item in read.turns:
            try:
                if item.category in categories:
                    self._turns[item.id] = read_multi_turn(item, padding)
            except SampleInvalid as error:
                self.problems += (Problem(item.id, str(error), "the item is left out"),)
        # 20 replies with calls in every turn, and one without.
        self.horizon = max([1, *((MOST_STEPS + 1) * len(made.gold) for made in self._turns.values())])

    def _task(self, item: CallItem | TurnsItem) -> Task:
        """The task of an item; it names the item and a digest of what that says, not the answer."""
        digest = hashlib.sha256(repr(item).encode()).hexdigest()[:16]
        spec = {"category": item.category, "id": item.id, "digest": digest}
        return Task(self.name, self.version, spec, item.category, group_of(item.category), "test")

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The items of a group in the order of the files; nothing but the split "test" has any.

        Raises:
            ConfigError: a split or tier that does not exist.
        """
        check_names(split, tier, GROUPS)
        if split != "test":
            return ()
        if tier not in self._panels:
            every: list[CallItem | TurnsItem] = [*self._calls.values(), *(made.item for made in self._turns.values())]
            self._panels[tier] = tuple(self._task(item) for item in every if group_of(item.category) == tier)
        return self._panels[tier]

    def item(self, task: Task) -> CallItem | MultiTurn:
        """The item of a task.

        Raises:
            ConfigError: a task of another world, or of an item that the folder does not have.
            VersionMismatch: the item says something else than when the task was made.
        """
        check_task(self, task)
        name = str(task.spec.get("id"))
        if name not in self._calls and name not in self._turns:
            raise ConfigError("the folder has no such item", value=name, hint="give the folder and the categories")
        item: CallItem | MultiTurn = self._calls[name] if name in self._calls else self._turns[name]
        own = self._task(item if isinstance(item, CallItem) else item.item)
        if own.id != task.id:
            raise VersionMismatch(f"{name} says something else", value=dict(task.spec), expected=dict(own.spec))
        return item

    def make(self, task: Task) -> Env:
        """An Env for one task; raises what `expert` raises."""
        item = self.item(task)
        if isinstance(item, CallItem):
            return CallEnv(item, self.form)
        return TurnsEnv(task, item, self._documents, form=self.form)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the verdict."""
        return score_won(rewards)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Replies with the gold calls; None for items that have no gold calls or are answered in Java or JavaScript.

        Raises:
            ConfigError: a task of another world, or of an item that the folder does not have.
            VersionMismatch: the item says something else than when the task was made.
        """
        item = self.item(task)
        if isinstance(item, MultiTurn):
            turns = ([encode_calls(gold, form=self.form)] if gold else [] for gold in item.gold)
            return [reply for turn in turns for reply in (*turn, _NO_CALL)]
        if item.category in IRRELEVANCE:
            return [_NO_CALL]
        if item.category in RELEVANCE or language_of(item.category) != "python":
            return None
        return [encode_calls(item.sample.calls, form=self.form)]

    def vocabulary(self) -> Sequence[str] | None:
        """None: it is open."""
        return None
