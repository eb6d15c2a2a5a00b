"""The kitchen world: orders in a 7x7 kitchen, with the published rewards.

    order : chopped tomato , lettuce ... -> move the tomato from the left shelf to the wooden board -> on the wooden
    board tomato -> chop the tomato on the wooden board -> ... -> deliver the blue plate -> right , ...

A salad of TWOSOME's Overcooked (2401.14151; POAD, 2405.15821) is one order of many here. In the form "commands"
an action makes three decisions (part, source and target) in names of one to six words that are drawn for each
task: its length varies and earns nothing. The form "macro" is the published one. POAD and TWOSOME discount with
gamma .99.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Json, Score, Task, Value
from evolvent.worlds.base import TIERS, Grammar, Info, Plain, Reply, StateEnv, check_task
from evolvent.worlds.kitchen.orders import Order, iterate_orders, list_orders_by_tier, parse_part, part_name
from evolvent.worlds.kitchen.plans import plan
from evolvent.worlds.kitchen.rooms import LEVELS, State, canonical_key, draw_kitchen
from evolvent.worlds.kitchen.rooms import Kitchen as Room
from evolvent.worlds.kitchen.rules import Rewards, apply_action, find_refusal
from evolvent.worlds.kitchen.text import DELIVERED, FORMS, WRONG, Speaker, collect_vocabulary
from evolvent.worlds.panel import Candidate, Panels, Sizes

__all__ = ["Kitchen", "KitchenEnv"]

_MAX_CACHED_KITCHENS = 2048  # kitchens kept ready
_HORIZONS = {"commands": 16, "macro": 28}
_MAX_PARTS = 3
_SMALL = LEVELS["small"]
_MAX_COMMAND_STEPS = 40  # single steps that one command can cost at most


class KitchenEnv(StateEnv[State]):
    """One order. It forks by keeping the state, which is replaced and never changed.

    `info` holds `admissible` (sorted), `won`, and `share`: the reached share of the subtasks and the delivery.
    """

    def __init__(self, task: Task, speaker: Speaker, rewards: Rewards, *, penalty: float) -> None:
        super().__init__(task, speaker.kitchen.start)
        self._speaker, self._rewards, self._penalty = speaker, rewards, penalty

    def _observe_start(self) -> tuple[Value, Info]:
        return self._speaker.first, self._info(self._start)

    def _info(self, state: State, *, won: bool = False) -> dict[str, object]:
        num_goals = 2 * len(self._speaker.kitchen.order) + 1
        share = 1.0 if won else state.reached_subtasks.bit_count() / num_goals
        return {"admissible": self._speaker.list_actions(state), "won": won, "share": share}

    def _transition(self, state: State, action: Value) -> tuple[State, Reply]:
        speaker, rewards = self._speaker, self._rewards
        parsed_action = speaker.parse_action(str(action), state)
        if isinstance(parsed_action, str):
            return state, (parsed_action, self._penalty, False, False, {**self._info(state), "invalid": True})
        reason = find_refusal(speaker.kitchen, state, parsed_action)
        if reason:
            refusal = speaker.explain_refusal(parsed_action, reason)
            return state, (refusal, self._penalty, False, False, {**self._info(state), "invalid": True})
        outcome = apply_action(speaker.kitchen, state, parsed_action)
        next_state = outcome.state
        reward = rewards.step * outcome.num_steps + rewards.subtask * outcome.num_subtasks
        if outcome.is_right_delivery is None:
            text = speaker.describe_result(parsed_action, next_state)
            return next_state, (text, reward, False, False, self._info(next_state))
        if not outcome.is_right_delivery:
            return next_state, (WRONG, reward + rewards.wrong, False, False, self._info(next_state))
        return next_state, (DELIVERED, reward + rewards.right, True, False, self._info(next_state, won=True))


class Kitchen:
    """The kitchen world.

    Args:
        form: "commands" (part, source, target) or "macro" (the published macro actions). The tasks are the same.
        level: "full", or "small": four foods, orders of one part, short names, clean boards and plates, one tier,
            panels of 1200, 80 and 80. A small model learns it in minutes; it does not test generalization.
        rewards: the rewards; by default the published shaping. `Rewards(subtask=0, wrong=0, step=0)` rewards the
            right delivery alone.
        penalty: the reward of an invalid or impossible action, 0 or less.
        sizes: the panel sizes.
        horizon: maximum number of actions of an episode (None: 16 commands, 28 macro actions).

    Raises:
        ConfigError: an unknown form or level, a horizon below 1, or a penalty that is positive or not finite.
    """

    version = "1"
    grammar: Grammar = Plain()
    run_in_thread = False

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
        problems = [] if form in FORMS else [unknown_name_problem("form", str(form), FORMS)]
        if level not in LEVELS:
            problems.append(unknown_name_problem("level", str(level), LEVELS))
        if horizon is not None and horizon < 1:
            problems.append(Problem("horizon", f"a horizon of {horizon} steps", "give at least 1"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.form, self.level, self.penalty = form, level, penalty
        self.rewards = rewards or Rewards()
        is_small = level == "small"
        self.name = "kitchen" + ("-small" if is_small else "") + ("-macro" if form == "macro" else "")
        self.tiers = TIERS[:1] if is_small else TIERS
        self.horizon = horizon or _HORIZONS[form] // (1 + is_small)
        min_reward = min(penalty, self.rewards.wrong) + _MAX_COMMAND_STEPS * self.rewards.step
        self.reward_range = (min_reward, self.rewards.right + 2 * _MAX_PARTS * self.rewards.subtask)
        self.instructions = _INSTRUCTIONS[form]
        self._speakers: dict[str, Speaker] = {}
        sizes = sizes or (Sizes(1200, 80, 80) if is_small else Sizes())
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes, draw=self._draw)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields tasks without end, of all orders of the tier in turn."""
        orders = (
            list_orders_by_tier()[tier] if self.level == "full" else [(part,) for part in range(2 * _SMALL.num_foods)]
        )
        for order, seed in iterate_orders(orders):
            spec: dict[str, Json] = {"order": [part_name(part) for part in order], "seed": seed}
            kitchen = draw_kitchen(order, seed, level=self.level)
            yield Candidate(spec, " , ".join(map(part_name, order)), tier, self._kitchen_key(kitchen))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in names and positions (small: positions only)."""
        return self._kitchen_key(self._get_speaker(task).kitchen)

    def _kitchen_key(self, kitchen: Room) -> str:
        return canonical_key(kitchen, with_names=self.level == "small")

    def make(self, task: Task) -> KitchenEnv:
        """Creates an Env for a task of this world.

        Raises:
            ConfigError: the task belongs to another world, or its spec is invalid.
            VersionMismatch: the task belongs to another version.
        """
        return KitchenEnv(task, self._get_speaker(task), self.rewards, penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the order was delivered; raw = the sum of the rewards, unit =
        `info["share"]`.

        Any reward of None makes the whole episode unscored.
        """
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        return Score(float(sum(known_rewards)), float(info.get("share", 0.0)), bool(info.get("won", False)))

    def expert(self, task: Task) -> Sequence[str]:
        """Returns a plan with the fewest actions, by short routes."""
        speaker = self._get_speaker(task)
        return [speaker.render_action(action) for action in plan(speaker.kitchen, one_step=self.form == "macro")]

    def vocabulary(self) -> Sequence[str]:
        """Returns every word and mark of observations and legal actions, sorted."""
        return sorted(collect_vocabulary())

    def _get_speaker(self, task: Task) -> Speaker:
        speaker = self._speakers.get(task.id)
        if speaker is None:
            speaker = Speaker(draw_kitchen(*self._parse_spec(task), level=self.level), self.form)
            while len(self._speakers) >= _MAX_CACHED_KITCHENS:
                self._speakers.pop(next(iter(self._speakers)))
            self._speakers[task.id] = speaker
        return speaker

    def _parse_spec(self, task: Task) -> tuple[Order, int]:
        """Parses order and seed of a task's spec; raises ConfigError with all its problems."""
        check_task(self, task)
        order_spec, seed = task.spec.get("order"), task.spec.get("seed")
        parts = [parse_part(text) for text in order_spec] if isinstance(order_spec, list | tuple) else []
        order = tuple(sorted(part for part in parts if part is not None))
        foods = {part >> 1 for part in order}
        problems = []
        unknown_food = any(food >= LEVELS[self.level].num_foods for food in foods)
        if not 1 <= len(parts) <= _MAX_PARTS or len(foods) < len(parts) or unknown_food:
            hint = f"give 1 to {_MAX_PARTS} parts of different foods, for example 'chopped tomato'"
            problems.append(Problem("order", f"{order_spec!r} is no order", hint))
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
