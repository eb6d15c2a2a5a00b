"""The kitchen world: orders in a 7x7 kitchen, with the published rewards.

    order : chopped tomato , lettuce ... -> move the tomato from the left shelf to the wooden board -> on the wooden
    board tomato -> chop the tomato on the wooden board -> ... -> deliver the blue plate -> right , ...

A salad of TWOSOME's Overcooked (2401.14151; POAD, 2405.15821) is one order of many here. In the form "commands" an
action makes three decisions, what, from where and where to, in names of one to six words that are drawn for each task:
its length varies and earns nothing. The form "macro" is the published one. POAD and TWOSOME discount with gamma .99.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evolvent.errors import ConfigError, Problem, SessionGone, unknown
from evolvent.trajectory import Json, Score, Task, Value
from evolvent.worlds.base import TIERS, Info, Reply, check_task, own_moment
from evolvent.worlds.grammar import Grammar, Plain
from evolvent.worlds.kitchen.orders import Order, orders_of_tiers, read_part, rounds, say_part
from evolvent.worlds.kitchen.plans import plan
from evolvent.worlds.kitchen.rooms import LEVELS, State, canonical_key, draw_kitchen
from evolvent.worlds.kitchen.rooms import Kitchen as Room
from evolvent.worlds.kitchen.rules import Rewards, apply, refusal
from evolvent.worlds.kitchen.text import DELIVERED, FORMS, WRONG, Speaker, words_said
from evolvent.worlds.panel import Candidate, Panels, Sizes

__all__ = ["Kitchen", "KitchenEnv"]

_KNOWN_TASKS = 2048  # kitchens kept ready
_HORIZONS = {"commands": 16, "macro": 28}
_MOST_PARTS = 3
_SMALL = LEVELS["small"]
_FARTHEST = 40  # single steps that one command can cost at most


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: whether the episode runs, and the state."""

    task: str
    running: bool
    state: State


class KitchenEnv:
    """One order. It forks by keeping the state, which is replaced and never changed.

    `info` holds `admissible` (sorted), `won`, and `share`: the share of the subtasks and the delivery reached.
    """

    def __init__(self, task: Task, speaker: Speaker, rewards: Rewards, *, penalty: float) -> None:
        self._task, self._speaker, self._rewards, self._penalty = task, speaker, rewards, penalty
        self._state = speaker.kitchen.start
        self._running = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._state, self._running = self._speaker.kitchen.start, True
        return self._speaker.first, self._info()

    def _info(self, *, won: bool = False) -> dict[str, object]:
        aims = 2 * len(self._speaker.kitchen.order) + 1
        share = 1.0 if won else self._state.paid.bit_count() / aims
        return {"admissible": self._speaker.legal(self._state), "won": won, "share": share}

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        speaker, rewards = self._speaker, self._rewards
        act = speaker.understand(str(action), self._state)
        if isinstance(act, str):
            return act, self._penalty, False, False, {**self._info(), "invalid": True}
        why = refusal(speaker.kitchen, self._state, act)
        if why:
            return speaker.refuse(act, why), self._penalty, False, False, {**self._info(), "invalid": True}
        change = apply(speaker.kitchen, self._state, act)
        self._state = change.state
        reward = rewards.step * change.steps + rewards.subtask * change.reached
        if change.delivered is None:
            return speaker.answer(act, change.state), reward, False, False, self._info()
        if not change.delivered:
            return WRONG, reward + rewards.wrong, False, False, self._info()
        self._running = False
        return DELIVERED, reward + rewards.right, True, False, self._info(won=True)

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running, self._state)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        moment = own_moment(value, _Moment, self._task)
        self._running, self._state = moment.running, moment.state

    def close(self) -> None:
        self._running = False


class Kitchen:
    """The kitchen world.

    Args:
        form: "commands" (what, from where, where to) or "macro" (the published macro actions). The tasks are the same.
        level: "full", or "small": four foods, orders of one part, short names, nothing lying about, one tier, panels of
            1200, 80 and 80. A small model learns it in minutes; it is no test of generalisation.
        rewards: what is paid; by default the published shaping. `Rewards(subtask=0, wrong=0, step=0)` pays the right
            delivery alone.
        penalty: the reward of an action that is none or cannot be done, 0 or less.
        sizes: the sizes of the panels.
        horizon: how many actions an episode may take (None: 16 commands, 28 macro actions).

    Raises:
        ConfigError: an unknown form or level, a horizon below 1, or a penalty that is positive or not finite.
    """

    version = "1"
    grammar: Grammar = Plain()
    blocking = False

    def __init__(
        self,
        form: str = "commands",
        *,
        level: str = "full",
        rewards: Rewards | None = None,
        penalty: float = -0.001,
        sizes: Sizes | None = None,
        horizon: int | None = None,
    ) -> None:
        problems = [] if form in FORMS else [unknown("form", str(form), FORMS)]
        if level not in LEVELS:
            problems.append(unknown("level", str(level), LEVELS))
        if horizon is not None and horizon < 1:
            problems.append(Problem("horizon", f"a horizon of {horizon} steps", "give at least 1"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.form, self.level, self.penalty = form, level, penalty
        self.rewards = rewards or Rewards()
        small = level == "small"
        self.name = "kitchen" + ("-small" if small else "") + ("-macro" if form == "macro" else "")
        self.tiers = TIERS[:1] if small else TIERS
        self.horizon = horizon or _HORIZONS[form] // (1 + small)
        worst = min(penalty, self.rewards.wrong) + _FARTHEST * self.rewards.step
        self.reward_range = (worst, self.rewards.right + 2 * _MOST_PARTS * self.rewards.subtask)
        self.instructions = _INSTRUCTIONS[form]
        self._speakers: dict[str, Speaker] = {}
        sizes = sizes or (Sizes(1200, 80, 80) if small else Sizes())
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes, draw=self._draw)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Tasks without end, of all orders of the tier in turn."""
        orders = orders_of_tiers()[tier] if self.level == "full" else [(part,) for part in range(2 * _SMALL.foods)]
        for order, seed in rounds(orders):
            spec: dict[str, Json] = {"order": [say_part(part) for part in order], "seed": seed}
            kitchen = draw_kitchen(order, seed, level=self.level)
            yield Candidate(spec, " , ".join(map(say_part, order)), tier, self._key(kitchen))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        return self._panels.tasks(split, tier)

    def key(self, task: Task) -> str:
        """Equal for tasks that differ in names and places only (small: in places only); what panels are dealt by."""
        return self._key(self._speaker(task).kitchen)

    def _key(self, kitchen: Room) -> str:
        return canonical_key(kitchen, named=self.level == "small")

    def make(self, task: Task) -> KitchenEnv:
        """An Env for a task of this world.

        Raises:
            ConfigError: for a task of another world, or a spec that is none.
            VersionMismatch: for a task of another version.
        """
        return KitchenEnv(task, self._speaker(task), self.rewards, penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the order was delivered; raw = the sum of the rewards, unit = `info["share"]`.

        Any reward of None makes the whole episode unscored.
        """
        known = [reward for reward in rewards if reward is not None]
        if len(known) != len(rewards):
            return Score(None, None, None)
        return Score(float(sum(known)), float(info.get("share", 0.0)), bool(info.get("won", False)))

    def expert(self, task: Task) -> Sequence[str]:
        """As few actions as possible, by short ways."""
        speaker = self._speaker(task)
        return [speaker.say(act) for act in plan(speaker.kitchen, single=self.form == "macro")]

    def vocabulary(self) -> Sequence[str]:
        """Every word and mark of observations and legal actions, sorted."""
        return sorted(words_said())

    def _speaker(self, task: Task) -> Speaker:
        speaker = self._speakers.get(task.id)
        if speaker is None:
            speaker = Speaker(draw_kitchen(*self._read(task), level=self.level), self.form)
            while len(self._speakers) >= _KNOWN_TASKS:
                self._speakers.pop(next(iter(self._speakers)))
            self._speakers[task.id] = speaker
        return speaker

    def _read(self, task: Task) -> tuple[Order, int]:
        """Order and seed of a task's spec, or ConfigError with all that is wrong."""
        check_task(self, task)
        wanted, seed = task.spec.get("order"), task.spec.get("seed")
        parts = [read_part(text) for text in wanted] if isinstance(wanted, list | tuple) else []
        order = tuple(sorted(part for part in parts if part is not None))
        foods = {part >> 1 for part in order}
        problems = []
        unknown_food = any(food >= LEVELS[self.level].foods for food in foods)
        if not 1 <= len(parts) <= _MOST_PARTS or len(foods) < len(parts) or unknown_food:
            hint = f"give 1 to {_MOST_PARTS} parts of different foods, for example 'chopped tomato'"
            problems.append(Problem("order", f"{wanted!r} is no order", hint))
        if type(seed) is not int:
            problems.append(Problem("seed", f"{seed!r} is no whole number", "give one"))
        if problems:
            raise ConfigError(problems)
        return order, task.spec["seed"]


_INSTRUCTIONS = {
    "commands": (
        "Prepare the order: lay its parts on one plate, chopped or whole as it says, nothing else, and deliver that "
        "plate. Only on a board can things be chopped. Actions: move the tomato from the left shelf to the wooden "
        "board; chop the tomato on the wooden board; move the chopped tomato from the wooden board to the blue plate; "
        "move the onion from the blue plate to the bin; deliver the blue plate."
    ),
    "macro": (
        "Prepare the order: lay its parts on one plate, chopped or whole as it says, nothing else, and deliver that "
        "plate. Only on a board can things be chopped. Actions: take the tomato; put the tomato on board one; chop the "
        "tomato; take the chopped tomato; put the tomato on plate one; put the tomato in the bin; clear plate two; "
        "deliver plate one."
    ),
}
