"""The kitchen world: orders in a 7x7 kitchen, with the published rewards.

    order : chopped tomato , lettuce ... -> move the tomato from the left shelf to the wooden board -> on the wooden
    board tomato -> chop the tomato on the wooden board -> ... -> deliver the blue plate -> right , ...

A salad of TWOSOME's Overcooked (2401.14151; POAD, 2405.15821) is one order of many here. In the form "commands"
an action makes three decisions (part, source and target) in names of one to six words that are drawn for each
task: its length varies and earns nothing. The form "macro" is the published one. POAD and TWOSOME discount with
gamma .99.

Expert: a plan with the fewest commands, and among those one with short routes.

Texts of a kitchen, in two forms of actions.

`commands` names the part, its place and its destination, in 3 to 19 words:

    move the chopped tomato from the board by the sink to the plate with the golden rim
    chop the tomato on the wooden board
    deliver the blue plate

`macro` is the published form, one macro action of 3 to 7 words at a time, with something in hand:

    take the tomato -> put the tomato on board one -> chop the tomato -> ... -> deliver plate one
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from types import MappingProxyType

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Json, Score, Task, Value
from evolvent.worlds.base import TIERS, Grammar, Info, Plain, Reply, StateEnv, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.kitchen.orders import (
    FOODS,
    PREPARED,
    Order,
    food_name,
    iterate_orders,
    list_orders_by_tier,
    parse_part,
    part_name,
)
from evolvent.worlds.kitchen.rooms import (
    BIN,
    BOARDS,
    LEVELS,
    NAMES,
    PLATES,
    SHELVES,
    State,
    canonical_key,
    draw_kitchen,
)
from evolvent.worlds.kitchen.rooms import Kitchen as Room
from evolvent.worlds.kitchen.rules import (
    Action,
    Rewards,
    apply_action,
    contains,
    find_nearest,
    find_refusal,
    has_room,
    list_commands,
    list_macro_actions,
)
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes

__all__ = ["DELIVERED", "FORMS", "WRONG", "Kitchen", "KitchenEnv", "Speaker", "collect_vocabulary", "plan"]


DELIVERED = "right , the order is delivered"
WRONG = "wrong , the plate comes back"
_COMMAND = re.compile(r"(?:move the (.+?) from the (.+?) to the (.+)|chop the (.+?) on the (.+)|deliver the (.+))")
_MACRO = re.compile(
    r"(?:take the (.+)|put the (.+?) (?:on (board|plate) (one|two)|in the bin)|chop the (.+)"
    r"|(clear|deliver) plate (one|two))"
)
_NUMBERS = ("one", "two")
_MACRO_NAMES = (
    "shelf one",
    "shelf two",
    "shelf three",
    "board one",
    "board two",
    "plate one",
    "plate two",
    "bin",
    "hatch",
)
FORMS: Mapping[str, str] = MappingProxyType(
    {
        "commands": "expected move the , chop the or deliver the",
        "macro": "expected take , put , chop , clear or deliver",
    }
)
"""Form of actions -> what is answered to a text that is none."""
_REFUSALS = {
    "absent": "there is no {part} on the {source}",
    "room": "the {target} has no room for that",
    "chopped": "that is chopped already",
    "empty": "the {source} is empty",
}
_HAND_REFUSALS = ("that is not in hand", "put down what is in hand first")
_NO_SUCH_PART, _NO_SUCH_PLACE = "there is no such thing", "there is no such place"


def collect_vocabulary() -> set[str]:
    """Returns every word and mark of observations and actions, in both forms."""
    names = (*FOODS, *PREPARED, *(name for kind_names in NAMES.values() for name in kind_names), *_MACRO_NAMES)
    sentences = (
        DELIVERED,
        WRONG,
        *FORMS.values(),
        *_HAND_REFUSALS,
        _NO_SUCH_PART,
        _NO_SUCH_PLACE,
        *_REFUSALS.values(),
        "order : , . : on the nothing in hand done move the from to chop deliver take put on in the clear",
    )
    return {word for text in (*names, *sentences) for word in words_of(re.sub(r"\{\w+\}", "", text))}


class Speaker:
    """Texts of a kitchen.

    Args:
        kitchen: the kitchen.
        form: one of `FORMS`.
    """

    def __init__(self, kitchen: Room, form: str) -> None:
        self.kitchen, self.form = kitchen, form
        self.names = _MACRO_NAMES if form == "macro" else kitchen.names
        self._places = {name: place_number for place_number, name in enumerate(self.names)}
        self.first = self._render_first_observation()
        self._legal: dict[State, tuple[str, ...]] = {}

    def _render_first_observation(self) -> str:
        start = self.kitchen.start
        order = " , ".join(map(part_name, self.kitchen.order))
        shelves = (
            f"on the {self.names[place_number]} {_join_parts(self.kitchen.shelves[place_number])}"
            for place_number in SHELVES
        )
        stations = (
            f"on the {self.names[place_number]} {self._render_content(start, place_number)}"
            for place_number in (*BOARDS, *PLATES)
        )
        return " . ".join((f"order : {order}", *shelves, *stations))

    def _render_content(self, state: State, place_number: int) -> str:
        if place_number in BOARDS:
            part = state.boards[place_number - BOARDS[0]]
            return _join_parts((part,) if part >= 0 else ())
        mask = state.plates[place_number - PLATES[0]]
        return _join_parts([part for part in range(mask.bit_length()) if mask >> part & 1])

    def list_actions(self, state: State) -> tuple[str, ...]:
        """Lists the possible actions as texts, sorted."""
        texts = self._legal.get(state)
        if texts is None:
            list_possible = list_commands if self.form == "commands" else list_macro_actions
            texts = tuple(sorted(self.render_action(action) for action in list_possible(self.kitchen, state)))
            if len(self._legal) < _MAX_CACHED_STATES:
                self._legal[state] = texts
        return texts

    def render_action(self, action: Action) -> str:
        """Renders an action as text."""
        if self.form == "macro":
            return self._render_macro(action)
        if action.verb == "move":
            source, target = self.names[action.source], self.names[action.target]
            return f"move the {_short_part_name(action.part)} from the {source} to the {target}"
        if action.verb == "chop":
            return f"chop the {food_name(action.part)} on the {self.names[action.source]}"
        return f"deliver the {self.names[action.source]}"

    def _render_macro(self, action: Action) -> str:
        if action.verb in ("take", "chop"):
            return f"{action.verb} the {_short_part_name(action.part)}"
        if action.verb == "put":
            destination = "in the bin" if action.target == BIN else f"on {self.names[action.target]}"
            return f"put the {food_name(action.part)} {destination}"
        return f"{action.verb} {self.names[action.source]}"

    def parse_action(self, text: str, state: State) -> Action | str:
        """Parses the action that a text requests; returns the error sentence if the text is invalid."""
        normalized_text = " ".join(text.lower().split())
        match = (_MACRO if self.form == "macro" else _COMMAND).fullmatch(normalized_text)
        if match is None:
            return FORMS[self.form]
        return self._parse_macro(match, state) if self.form == "macro" else self._parse_command(match)

    def _parse_command(self, match: re.Match[str]) -> Action | str:
        moved_name, source, target, chopped_name, board, plate = match.groups()
        if plate is not None:
            place_number = self._places.get(plate, -1)
            return Action("deliver", -1, place_number) if place_number in PLATES else _NO_SUCH_PLACE
        part = _PART_BY_NAME.get(moved_name or chopped_name, -1)
        if part < 0:
            return _NO_SUCH_PART
        if chopped_name is not None:
            place_number = self._places.get(board, -1)
            return Action("chop", part, place_number) if place_number in BOARDS else _NO_SUCH_PLACE
        start, end = self._places.get(source, -1), self._places.get(target, -1)
        if start not in (*SHELVES, *BOARDS, *PLATES) or end not in (*BOARDS, *PLATES, BIN):
            return _NO_SUCH_PLACE
        return Action("move", part, start, end)

    def _parse_macro(self, match: re.Match[str], state: State) -> Action | str:
        taken_name, put_name, kind, number, chopped_name, verb, plate = match.groups()
        if verb is not None:
            return Action(verb, -1, PLATES[_NUMBERS.index(plate)])
        part = _PART_BY_NAME.get(taken_name or put_name or chopped_name, -1)
        if part < 0:
            return _NO_SUCH_PART
        if put_name is not None:
            places_by_kind = {"board": BOARDS, "plate": PLATES}
            target = BIN if kind is None else places_by_kind[kind][_NUMBERS.index(number)]
            return Action("put", state.held_part if state.held_part >> 1 == part >> 1 else part, -1, target)
        among = BOARDS if chopped_name is not None else (*SHELVES, *BOARDS)
        source = find_nearest(self.kitchen, state, part, among=among)
        return Action("take" if chopped_name is None else "chop", part, source)

    def explain_refusal(self, action: Action, reason: str) -> str:
        """Explains in words why an action is impossible."""
        if reason == "hand":
            return _HAND_REFUSALS[action.verb != "put"]
        if reason == "absent" and action.source < 0:
            return _NO_SUCH_PART
        source, target = (
            self.names[place_number] if place_number >= 0 else "" for place_number in (action.source, action.target)
        )
        return _REFUSALS[reason].format(part=_short_part_name(action.part), source=source, target=target)

    def describe_result(self, action: Action, state: State) -> str:
        """Describes the content of the changed place after an action; the world answers a delivery."""
        if action.verb == "take":
            return f"in hand {_short_part_name(action.part)}"
        place_number = action.source if action.verb in ("chop", "clear") else action.target
        return (
            "done"
            if place_number == BIN
            else f"on the {self.names[place_number]} {self._render_content(state, place_number)}"
        )


_MAX_CACHED_STATES = 4096  # lists of actions kept for one task


def _short_part_name(part: int) -> str:
    return f"chopped {food_name(part)}" if part & 1 else food_name(part)


def _join_parts(parts: Sequence[int]) -> str:
    return " , ".join(map(_short_part_name, parts)) or "nothing"


_PART_BY_NAME = {
    **{_short_part_name(part): part for part in range(2 * len(FOODS))},
    **{part_name(part): part for part in range(2 * len(FOODS))},
}


def plan(kitchen: Room, *, one_step: bool = False) -> tuple[Action, ...]:
    """Returns the actions that deliver the order from the start.

    A plate is chosen and cleared of wrong parts; then each part is brought in some order, chopped where required.
    All plates and orders of parts are tried. A board is free at the start, and every part leaves its board free.

    Args:
        one_step: take and put by separate commands, as in the published macro actions.
    """
    plans = [_build_plan(kitchen, plate, parts, one_step) for plate in PLATES for parts in permutations(kitchen.order)]
    return min(plans, key=lambda candidate: (len(candidate[0]), candidate[1]))[0]


def _build_plan(kitchen: Room, plate: int, parts: tuple[int, ...], one_step: bool) -> tuple[tuple[Action, ...], int]:
    """Builds the plan for a plate and an order of parts; returns its actions and the number of single steps."""
    state, actions, steps = kitchen.start, [], 0
    while True:
        action = _next_action(kitchen, state, plate, parts=parts, one_step=one_step)
        outcome = apply_action(kitchen, state, action)
        state, steps = outcome.state, steps + outcome.num_steps
        actions.append(action)
        if action.verb == "deliver":
            return tuple(actions), steps


def _next_action(kitchen: Room, state: State, plate: int, *, parts: tuple[int, ...], one_step: bool) -> Action:
    mask = state.plates[plate - PLATES[0]]
    if state.held_part >= 0:
        return Action(
            "put",
            state.held_part,
            -1,
            plate if state.held_part in kitchen.order else _nearest_free_board(kitchen, state),
        )
    wrong_parts = mask & ~kitchen.order_mask
    if wrong_parts:
        return Action("clear", -1, plate) if one_step else Action("move", wrong_parts.bit_length() - 1, plate, BIN)
    part = next((part for part in parts if not mask >> part & 1), None)
    if part is None:
        return Action("deliver", -1, plate)
    source = _find_source(kitchen, state, part, plates=not one_step)
    if source >= 0:
        return Action("take", part, source) if one_step else Action("move", part, source, plate)
    raw_part = part & ~1
    board = find_nearest(kitchen, state, raw_part, among=BOARDS)
    if board >= 0:
        return Action("chop", raw_part, board)
    shelf = find_nearest(kitchen, state, raw_part)
    return (
        Action("take", raw_part, shelf)
        if one_step
        else Action("move", raw_part, shelf, _nearest_free_board(kitchen, state))
    )


def _find_source(kitchen: Room, state: State, part: int, *, plates: bool) -> int:
    """Finds the nearest place of a prepared part, a plate only where parts can be taken from plates; -1 for none."""
    place_number = find_nearest(kitchen, state, part)
    if place_number >= 0 or not plates:
        return place_number
    return next((place_number for place_number in PLATES if contains(kitchen, state, place_number, part=part)), -1)


def _nearest_free_board(kitchen: Room, state: State) -> int:
    return min(_free_boards(state), key=lambda board: kitchen.distances[state.cook_cell][kitchen.access_cells[board]])


def _free_boards(state: State) -> Iterator[int]:
    return (board for board in BOARDS if has_room(state, board, 0))


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


class Kitchen(DealtOnce):
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
            problems.append(Problem("horizon", f"got {horizon} steps, expected at least 1"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
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
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes, draw=self._draw, recipe=self.recipe)

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
            problems.append(Problem("order", f"invalid order {order_spec!r}", hint))
        if type(seed) is not int:
            problems.append(Problem("seed", f"got {seed!r}, expected a whole number"))
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
