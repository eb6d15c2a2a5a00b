"""The kinds of household tasks, and their tiers: demonstrated, explored, or reserved for tests.

A kind is a goal: a family, an object, a target. Within each family

- `seen` kinds are demonstrated;
- `evo` kinds have an object that no demonstration of the family has; only exploration shows that it works
  alike;
- `combo` kinds have an object and a target that demonstrations of the family have, but never together;
- `longer` are the goals of `seen` in rooms with more receptacles than any training room, so that searching
  takes longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from types import MappingProxyType

from evolvent.trajectory import sample_seed
from evolvent.worlds.household.game import FAMILIES, Goal
from evolvent.worlds.household.rooms import rooms_for
from evolvent.worlds.household.things import LIGHTS, PROPERTIES, ROOMS

__all__ = ["iterate_goals", "kind_name", "list_goals_by_tier", "list_possible_goals"]

_HELD_OUT_STRIDE = 4  # one object in so many is `evo` in a family
_COMBO_DIVISOR = 3  # one pair in so many is `combo`


@cache
def list_possible_goals() -> tuple[Goal, ...]:
    """Lists every goal that some room makes sense for."""
    furniture = sorted({kind for room_type in ROOMS.values() for kind in room_type.furniture})
    goals = (
        Goal(family, object_type, target)
        for family in FAMILIES
        for object_type in PROPERTIES
        for target in (LIGHTS if family == "look" else furniture)
    )
    return tuple(goal for goal in goals if rooms_for(goal))


@cache
def list_goals_by_tier() -> Mapping[str, Mapping[str, tuple[Goal, ...]]]:
    """Lists the goals by tier and family, in an order drawn by their hash."""
    tiers: dict[str, dict[str, tuple[Goal, ...]]] = {"seen": {}, "evo": {}, "combo": {}, "longer": {}}
    for family in FAMILIES:
        goals = sorted(
            (goal for goal in list_possible_goals() if goal.family == family),
            key=lambda goal: sample_seed("kind", *goal),
        )
        object_types = sorted(
            {goal.object for goal in goals}, key=lambda object_type: sample_seed("held back", family, object_type)
        )
        held_out = set(object_types[::_HELD_OUT_STRIDE])
        remaining = [goal for goal in goals if goal.object not in held_out]
        combo = _choose_combo_goals(remaining)
        tiers["evo"][family] = tuple(goal for goal in goals if goal.object in held_out)
        tiers["combo"][family] = tuple(goal for goal in remaining if goal in combo)
        tiers["seen"][family] = tiers["longer"][family] = tuple(goal for goal in remaining if goal not in combo)
    return MappingProxyType({tier: MappingProxyType(goals_by_family) for tier, goals_by_family in tiers.items()})


def _choose_combo_goals(goals: Sequence[Goal]) -> set[Goal]:
    """Chooses goals to keep from training, such that each of their objects and targets stays in a trained goal."""
    combo_goals: set[Goal] = set()
    for goal in goals[: len(goals) // _COMBO_DIVISOR]:
        other_goals = [other_goal for other_goal in goals if other_goal not in combo_goals and other_goal != goal]
        if any(other_goal.object == goal.object for other_goal in other_goals) and any(
            candidate.target == goal.target for candidate in other_goals
        ):
            combo_goals.add(goal)
    return combo_goals


def kind_name(goal: Goal, tier: str) -> str:
    """Returns the name of a kind: the goal, and for `longer` a mark that the room is larger."""
    return " ".join(goal) + (" larger" if tier == "longer" else "")


def iterate_goals(tier: str) -> Iterator[tuple[Goal, int]]:
    """Yields (goal, seed) without end: the families take turns, and each cycles through its goals with increasing
    seeds.
    """
    families = list_goals_by_tier()[tier]
    for round_index in count():
        for goals in families.values():
            yield goals[round_index % len(goals)], round_index // len(goals)
