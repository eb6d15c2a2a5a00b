"""The kinds of household tasks, and their tiers: which of them are demonstrated, explored, or kept for tests alone.

A kind is a goal: a family, an object, a target. Within each family

- `seen` kinds are demonstrated;
- `evo` kinds have an object that no demonstration of the family has; only exploring finds out that it works alike;
- `combo` kinds have an object and a target that demonstrations of the family have, each with others: never the two;
- `longer` are the goals of `seen` in rooms with more receptacles than any room that is trained in, so that searching
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

__all__ = ["kind_of", "kinds_of_tiers", "possible_goals", "rounds"]

_HELD_BACK = 4  # one object in so many is `evo` in a family
_KEPT_APART = 3  # one pair in so many is `combo`


@cache
def possible_goals() -> tuple[Goal, ...]:
    """Every goal that some room makes sense for."""
    furniture = sorted({kind for room in ROOMS.values() for kind in room.furniture})
    goals = (
        Goal(family, thing, target)
        for family in FAMILIES
        for thing in PROPERTIES
        for target in (LIGHTS if family == "look" else furniture)
    )
    return tuple(goal for goal in goals if rooms_for(goal))


@cache
def kinds_of_tiers() -> Mapping[str, Mapping[str, tuple[Goal, ...]]]:
    """Tier -> family -> its goals, in an order drawn by their hash."""
    tiers: dict[str, dict[str, tuple[Goal, ...]]] = {"seen": {}, "evo": {}, "combo": {}, "longer": {}}
    for family in FAMILIES:
        goals = sorted(
            (goal for goal in possible_goals() if goal.family == family), key=lambda goal: sample_seed("kind", *goal)
        )
        things = sorted({goal.object for goal in goals}, key=lambda thing: sample_seed("held back", family, thing))
        held_back = set(things[::_HELD_BACK])
        rest = [goal for goal in goals if goal.object not in held_back]
        combo = _kept_apart(rest)
        tiers["evo"][family] = tuple(goal for goal in goals if goal.object in held_back)
        tiers["combo"][family] = tuple(goal for goal in rest if goal in combo)
        tiers["seen"][family] = tiers["longer"][family] = tuple(goal for goal in rest if goal not in combo)
    return MappingProxyType({tier: MappingProxyType(of) for tier, of in tiers.items()})


def _kept_apart(goals: Sequence[Goal]) -> set[Goal]:
    """Goals to keep from training so that each of their objects and targets stays in another goal that is trained."""
    kept: set[Goal] = set()
    for goal in goals[: len(goals) // _KEPT_APART]:
        others = [other for other in goals if other not in kept and other != goal]
        if any(other.object == goal.object for other in others) and any(o.target == goal.target for o in others):
            kept.add(goal)
    return kept


def kind_of(goal: Goal, tier: str) -> str:
    """The kind's name: the goal, and for `longer` that the room is larger."""
    return " ".join(goal) + (" larger" if tier == "longer" else "")


def rounds(tier: str) -> Iterator[tuple[Goal, int]]:
    """(goal, seed) without end: the families take turns, and each goes round its goals with one seed after another."""
    families = kinds_of_tiers()[tier]
    for turn in count():
        for goals in families.values():
            yield goals[turn % len(goals)], turn // len(goals)
