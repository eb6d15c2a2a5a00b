"""TWOSOME's two tasks of VirtualHome, with its observations and actions, without the simulator.

    food           kitchen: reach for the pancake, grab it, move to the microwave, open it, put the pancake in, close it
    entertainment  bring chips and milk from the kitchen, turn on the TV, take a seat on the sofa

Sources: Tan et al. (arXiv 2401.14151; `virtual-home` and `twosome/virtualhome` of WeihaoTan/TWOSOME), used by POAD
(arXiv 2405.15821). The rules are those of VirtualHome's evolving graph for these objects: whoever walks leaves what was
near, two things can be held, opening and switching take a free hand, and nobody walks while sitting. The texts, their
slips included, and which actions they offer are the published ones; so are the traps (who has put both things on the
table can only leave the room; who sits down too early stays there). The reward is 1 at the goal, the discount .95.

The published start is in the kitchen; tasks that start in the other rooms are added. The tier `combo` has other food in
the pancake's location, on which TWOSOME measures generalization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from typing import Any, Literal, NamedTuple

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Score, Task, Value
from evolvent.worlds.base import SPLITS, Grammar, Info, Plain, Reply, StateEnv, check_task, score_if_won
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import check_names

__all__ = ["FOODS", "STAGES", "VirtualHome", "VirtualHomeEnv"]

Stage = Literal["food", "entertainment"]
STAGES: tuple[Stage, ...] = ("food", "entertainment")
FOODS: tuple[str, ...] = ("pancake", "cheese", "hamburger", "apple pie", "pizza")
"""What is heated: the pancake in training, the others in the tier `combo`."""
_ROOMS = {"living room": 0, "kitchen": 1, "bathroom": 2, "bedroom": 3}  # room -> its action, "walk to the ..."
_HOUSE = "There are four rooms: the kitchen, bathroom, bedroom, and living room. You are in the "
_IDLE = "Currently, you are not grabbing anything in hand. "
_REFUSAL = "That is not one of the actions that are possible."
_HORIZON = 50
_STARTS = ("kitchen", "living room", "bathroom", "bedroom")  # the first is the published one


class _State(NamedTuple):
    """The state of either task.

    Args:
        room_name, near: where the agent is, and what it stands at ("" for nothing).
        first, second: where the pancake is; where chips and milk are: "room", "held" or "placed".
        is_on: the microwave is open; the TV is on.
        is_sitting: on the sofa.
    """

    room_name: str = "kitchen"
    near: str = ""
    first: str = "room"
    second: str = "room"
    is_on: bool = False
    is_sitting: bool = False


class _Food:
    """Heats one kind of food in the microwave."""

    def __init__(self, food: str) -> None:
        self.food = food
        self.actions = (
            *(f"walk to the {room_name}" for room_name in _ROOMS),
            f"reach for the {food}",
            "move to the microwave",
            f"grab the {food}",
            f"put the {food} in the microwave",
            "open the microwave",
            "close the microwave",
        )

    def is_goal(self, state: _State) -> bool:
        return state.room_name == "kitchen" and state.first == "placed" and not state.is_on

    def apply(self, state: _State, action: int) -> _State:
        at_microwave = state.near == "microwave"
        if action < len(_ROOMS):
            return state._replace(room_name=list(_ROOMS)[action], near="")
        if action == 4:  # what lies in the microwave is reached there
            return state._replace(near="microwave" if state.first == "placed" else "food")
        if action == 5:
            return state._replace(near="microwave")
        if action == 6 and state.near == "food" and state.first == "room":
            return state._replace(first="held")
        if action == 7 and at_microwave and state.is_on and state.first == "held":
            return state._replace(first="placed")
        if action in (8, 9) and at_microwave:
            return state._replace(is_on=action == 8)
        return state

    def observe(self, state: _State) -> tuple[str, tuple[int, ...]]:
        """Returns the text and the numbers of the actions that it offers."""
        food, text = self.food, f"{_HOUSE}{state.room_name}. "
        if state.room_name != "kitchen":
            hands = f"Currently, you have grabbed the {food} in hand. " if state.first == "held" else _IDLE
            offered = tuple(number for room_name, number in _ROOMS.items() if room_name != state.room_name)
            text += f"and notice nothing useful. {hands}"
        else:
            kitchen_text, offered = self._observe_kitchen(state)
            text += kitchen_text
        return f"{text}In order to heat up the {food} in the microwave, your next step is to", offered

    def _observe_kitchen(self, state: _State) -> tuple[str, tuple[int, ...]]:
        food, at_microwave = self.food, state.near == "microwave"
        if self.is_goal(state):
            return f"The {food} is in the microwave. The microwave is closed. ", (0, 2, 3)
        offered: tuple[int, ...] = (4, 5)
        reach = f"{_IDLE}The {food} and the microwave are not within your immediate reach. "
        if state.first == "held":
            offered = (4, 7, 8, 9) if at_microwave else (4, 5)
            reach = f"Currently, you have grabbed the {food} in hand. The microwave is "
            reach += f"{'' if at_microwave else 'not '}within your immediate reach. "
        elif at_microwave:
            offered = (8, 9) if state.first == "placed" else (4, 8, 9)
            reach = "" if state.first == "placed" else f"{_IDLE}The microwave is within your immediate reach. "
        elif state.near:
            offered, reach = (5, 6), f"{_IDLE}The {food} is within your immediate reach. "
        door = "The microwave is opened. " if state.is_on else "The microwave is not opend. "
        return f"You notice {food} and microwave. {reach}{door}", (0, 2, 3, *offered)


class _Entertainment:
    """Enjoys chips and milk in front of the TV."""

    actions = (
        *(f"walk to the {room_name}" for room_name in _ROOMS),
        "reach for the chips",
        "reach for the milk",
        "move to the coffee table",
        "move to the TV",
        "move to the sofa",
        "grab the chips",
        "grab the milk",
        "put the chips on the coffee table",
        "put the milk on the coffee table",
        "turn on the TV",
        "turn off the TV",
        "take a seat on the sofa",
        "stand up from the sofa",
    )

    def is_goal(self, state: _State) -> bool:
        return state.is_sitting and state.is_on and "room" not in (state.first, state.second)

    def apply(self, state: _State, action: int) -> _State:
        has_free_hand = (state.first, state.second) != ("held", "held")
        if action <= 8:
            return self._walk(state, action)
        if action in (9, 10):
            item, location = ("chips", state.first) if action == 9 else ("milk", state.second)
            if state.near != item or location != "room":
                return state
            return state._replace(first="held") if action == 9 else state._replace(second="held")
        if action in (11, 12):
            location = state.first if action == 11 else state.second
            if state.near != "coffee table" or location != "held":
                return state
            return state._replace(first="placed") if action == 11 else state._replace(second="placed")
        if action in (13, 14) and state.near == "TV" and has_free_hand:
            return state._replace(is_on=action == 13)
        if action == 15 and state.near == "sofa":
            return state._replace(is_sitting=True)
        return state

    def _walk(self, state: _State, action: int) -> _State:
        if state.is_sitting:
            return state
        if action < len(_ROOMS):
            return state._replace(room_name=list(_ROOMS)[action], near="")
        if action in (4, 5):
            item, location = ("chips", state.first) if action == 4 else ("milk", state.second)
            return state if location == "placed" else state._replace(near=item)  # what is out of sight is not reached
        return state._replace(near=("coffee table", "TV", "sofa")[action - 6])

    def observe(self, state: _State) -> tuple[str, tuple[int, ...]]:
        """Returns the text and the numbers of the actions that it offers."""
        rooms = tuple(number for room_name, number in _ROOMS.items() if room_name != state.room_name)
        if state.room_name == "kitchen":
            text, offered = self._observe_kitchen(state)
        elif state.room_name == "living room":
            text, offered = self._observe_living_room(state)
        else:
            text, offered = f"and notice nothing. {_name_hands(state)}", ()
        goal = "In order to enjoy the chips and the milk while watching TV, your next step is to"
        return f"{_HOUSE}{state.room_name} {text}{goal}", (*rooms, *offered)

    def _observe_kitchen(self, state: _State) -> tuple[str, tuple[int, ...]]:
        chips, milk = state.first, state.second
        chips_reach = "The chips is within your immediate reach. But you have not grabbed the chips. "
        milk_reach = "The milk is within your immediate reach. But you have not grabbed the milk. "
        if "placed" in (chips, milk):
            return self._observe_half_empty_kitchen(state, {"chips": chips_reach, "milk": milk_reach})
        text, hands = "and notice chips and milk. ", _name_hands(state)
        if (chips, milk) == ("held", "held"):
            return text + hands, ()
        if chips == "held":
            is_near = state.near == "milk"
            reach = milk_reach if is_near else "The milk is not within your immediate reach. "
            return text + reach + hands, (10,) if is_near else (5,)
        if milk == "held":
            is_near = state.near == "chips"
            reach = chips_reach if is_near else "The chips is not within your immediate reach. "
            return text + reach + hands, (9,) if is_near else (4,)
        nothing = "But they are not within your immediate reach. "
        reach = {"chips": chips_reach, "milk": milk_reach}.get(state.near, nothing)
        return text + reach + hands, {"chips": (5, 9), "milk": (4, 10)}.get(state.near, (4, 5))

    def _observe_half_empty_kitchen(self, state: _State, reach: Mapping[str, str]) -> tuple[str, tuple[int, ...]]:
        """Returns the kitchen where something was carried away before; the published offers mix up the two things."""
        if (state.first, state.second) == ("placed", "placed"):
            return "and notice nothing. ", ()
        item, location = ("chips", state.first) if state.second == "placed" else ("milk", state.second)
        text = "and only notice chips. " if item == "chips" else "and notice milk. "
        if location == "held":
            return f"{text}Currently, you have grabbed the {item} in hand. ", ()
        if state.near == item:
            return text + reach[item], (9,) if item == "chips" else (10,)
        return f"{text}The {item} is not within your immediate reach. ", (5,) if item == "chips" else (4,)

    def _observe_living_room(self, state: _State) -> tuple[str, tuple[int, ...]]:
        text, hands = "and you notice a coffee table, a TV and a sofa. ", (state.first, state.second)
        if not state.near:
            return f"{text}They are not close to you. {_name_hands(state)}", (6, 7, 8)
        if state.near == "coffee table":
            is_half_done = hands in (("placed", "held"), ("held", "placed"))
            text += "The TV is not close to you. " if is_half_done else "The coffee table is close to you. "
            if "held" not in hands:
                return text + _IDLE, ()
            puts = () if is_half_done else tuple({0: 11, 1: 12}[i] for i in range(2) if hands[i] == "held")
            return text + _tell_hands(state, with_tv=False), (7, 8, *puts)
        if state.near == "TV":
            text += "The sofa is not close to you. " if state.is_on else "The TV is close to you. "
            offered: tuple[int, ...] = (6, 8) if state.is_on else (6, 8, 13, 14)
        elif state.is_sitting:
            text, offered = f"{text}You are sitting on the sofa. ", ()
        else:
            text, offered = f"{text}The sofa is close to you. ", (6, 7, 15, 16) if state.is_on else (6, 7)
        return text + _tell_hands(state, with_tv=state.is_on), offered


def _name_hands(state: _State) -> str:
    names = [f"the {item}" for item, location in (("chips", state.first), ("milk", state.second)) if location == "held"]
    return f"Currently, you have grabbed {' and '.join(names)} in hand. " if names else _IDLE


def _tell_hands(state: _State, *, with_tv: bool) -> str:
    """Returns what is held and what lies on the table; who holds the chips alone is told so twice, as published."""
    start = "Currently, the TV is turned on, you have " if with_tv else "Currently, you have "
    hands = (state.first, state.second)
    if hands == ("held", "held"):
        return f"{start}grabbed the chips and the milk in hand. "
    if state.second == "held":
        on_table = f"{start}the chips on the coffee table and the milk in your hand. "
        return on_table if state.first == "placed" else f"{start}grabbed the milk in hand. "
    if state.first != "held":
        return ""
    grabbed = f"{start}grabbed the chips in hand. "
    on_table = f"{start}the milk on the coffee table and the chips in your hand. "
    return grabbed + (on_table if state.second == "placed" else grabbed)


_Rules = _Food | _Entertainment


@cache
def _rules_of(stage: str, food: str) -> _Rules:
    return _Food(food) if stage == "food" else _Entertainment()


@cache
def _search(rules: _Rules, start: _State) -> tuple[Mapping[_State, tuple[_State, int]], _State]:
    """Finds all states by breadth-first search: each with the state and the action before it, and the nearest goal."""
    origins: dict[_State, tuple[_State, int]] = {start: (start, -1)}
    goal, queue = None, [start]
    for state in queue:
        if rules.is_goal(state):
            goal = goal or state
            continue
        for action in rules.observe(state)[1]:
            after = rules.apply(state, action)
            if after not in origins:
                origins[after] = (state, action)
                queue.append(after)
    if goal is None:
        raise ConfigError("the task cannot be solved")
    return origins, goal


class VirtualHomeEnv(StateEnv[_State]):
    """One episode."""

    def __init__(self, task: Task, rules: _Rules, penalty: float) -> None:
        super().__init__(task, _State(room_name=str(task.spec["start"])))
        self._rules, self._penalty = rules, penalty

    def _observe_start(self) -> tuple[Value, Info]:
        return self._observe(self._start)

    def _observe(self, state: _State) -> tuple[str, Info]:
        text, offered = self._rules.observe(state)
        return text, {"admissible": tuple(self._rules.actions[number] for number in offered)}

    def _transition(self, state: _State, action: Value) -> tuple[_State, Reply]:
        info = self._observe(state)[1]
        name = " ".join(str(action).split())
        offer_text = next((offer for offer in info["admissible"] if offer.lower() == name.lower()), None)
        if offer_text is None:
            return state, (_REFUSAL, self._penalty, False, False, {**info, "invalid": True})
        after = self._rules.apply(state, self._rules.actions.index(offer_text))
        text, info = self._observe(after)
        is_goal = self._rules.is_goal(after)
        return after, (text, float(is_goal), is_goal, False, info)


class VirtualHome:
    """TWOSOME's tasks of VirtualHome.

    Args:
        stage: "food" (Food Preparation) or "entertainment" (Entertainment).
        penalty: the reward of an action that is not offered, 0 or less.
        horizon: how many steps an episode may take.
    Raises:
        ConfigError: an unknown stage, a penalty that is positive or not finite, a horizon below 1.
    """

    version = "1"
    grammar: Grammar = Plain()
    run_in_thread = False

    def __init__(self, stage: Stage = "food", *, penalty: float = 0.0, horizon: int = _HORIZON) -> None:
        problems = [] if stage in STAGES else [unknown_name_problem("stage", str(stage), STAGES)]
        if horizon < 1:
            problems.append(Problem("horizon", f"got {horizon} steps, expected at least 1"))
        if not -inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.stage, self.penalty, self.horizon = stage, penalty, horizon
        self.name = "virtualhome" if stage == "food" else "virtualhome-entertainment"
        self.tiers: tuple[str, ...] = ("seen", "combo") if stage == "food" else ("seen",)
        self.reward_range = (min(0.0, penalty), 1.0)
        self.instructions = "Continue each text with one of the actions that are possible."

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns a task for each room to start in, the published kitchen first.

        In the tier `combo` it is one for each other food, from the kitchen, and none of it in train.
        """
        check_names(split, tier, self.tiers)
        food = FOODS[0] if self.stage == "food" else ""
        if tier == "seen":
            return tuple(self._build_task(food, start, split=split, tier=tier) for start in _STARTS)
        foods = FOODS[1:] if split != "train" else ()
        return tuple(self._build_task(food, _STARTS[0], split=split, tier=tier) for food in foods)

    def _build_task(self, food: str, start: str, *, split: str, tier: str) -> Task:
        spec: dict[str, Any] = {"stage": self.stage, "start": start, "split": split, **({"food": food} if food else {})}
        return Task(self.name, self.version, spec, f"{food or self.stage} from {start}", tier, split)

    def make(self, task: Task) -> VirtualHomeEnv:
        """Creates an Env for a task of this world; raises ConfigError or VersionMismatch for any other."""
        return VirtualHomeEnv(task, self._find_rules(task), self.penalty)

    def _find_rules(self, task: Task) -> _Rules:
        check_task(self, task)
        foods = FOODS if self.stage == "food" else ("",)
        allowed = (("stage", (self.stage,)), ("start", _STARTS), ("split", SPLITS), ("food", foods))
        problems = [
            Problem(name, f"unknown value {task.spec.get(name, '')!r}", f"known: {', '.join(values)}")
            for name, values in allowed
            if task.spec.get(name, "") not in values
        ]
        if problems:
            raise ConfigError(problems)
        return _rules_of(self.stage, str(task.spec.get("food", "")))

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the goal was reached; raw = the sum of the rewards, unit = 1 or 0."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns a shortest way to the goal."""
        rules = self._find_rules(task)
        origins, state = _search(rules, _State(room_name=str(task.spec["start"])))
        plan: list[str] = []
        while origins[state][1] >= 0:
            state, action = origins[state]
            plan.insert(0, rules.actions[action])
        return plan

    def vocabulary(self) -> Sequence[str]:
        """Returns every word and mark of observations and actions, sorted."""
        texts = [self.instructions, _REFUSAL]
        for food in FOODS if self.stage == "food" else ("",):
            rules = _rules_of(self.stage, food)
            texts += [*rules.actions, *(rules.observe(state)[0] for state in _search(rules, _State())[0])]
        return sorted({word for text in texts for word in words_of(text)})
