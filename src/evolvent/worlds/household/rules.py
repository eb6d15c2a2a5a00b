"""The rules of a household: the possible actions of a state, their effects, and the test of the goal.

Pure functions of a game and a state. The rules are those of alfworld 0.4.2's planning domain as its engine
plays it, some of which are surprising:

- `clean`, `heat` and `cool` need neither an open appliance nor a put: the object is held in front of it;
- heating removes the flag cool and cooling removes hot, cleaning changes neither;
- a light is used without opening its receptacle, and once used it counts as used forever;
- receptacles have unlimited capacity; `examine` of an object is possible only for the held one;
- no action leads back to the agent's start, since no receptacle stands there.
"""

from __future__ import annotations

from typing import NamedTuple

from evolvent.worlds.household.game import APPLIANCE_OF_TREATMENT, FAMILIES, Game, State, iterate_bits

__all__ = ["ALWAYS_LEGAL", "Action", "apply_action", "is_possible", "is_won", "list_actions"]


class Action(NamedTuple):
    """A verb and the numbers of its arguments: receptacles for most verbs, as listed below.

    `go`, `open`, `close`, `view` (examine a receptacle): (receptacle). `take`, `move`, `clean`, `heat`, `cool`:
    (object, receptacle). `use`, `feel` (examine an object): (object). `slice`: (object, knife). `look`,
    `inventory`, `help`: ().
    """

    verb: str
    first: int = -1
    second: int = -1


ALWAYS_LEGAL: tuple[Action, ...] = (Action("help"), Action("inventory"), Action("look"))
"""The actions that are always possible."""


def list_actions(game: Game, state: State) -> list[Action]:
    """Lists every possible action, in no particular order."""
    agent_place, held_object, opened = state.agent_place, state.held_object, state.opened
    actions = [
        Action("go", receptacle)
        for receptacle, receptacle_place in enumerate(game.place)
        if receptacle_place != agent_place and receptacle_place >= 0
    ]
    pickupable, toggleable, sliceable = game.ability_masks
    for receptacle in game.here[agent_place]:
        actions.append(Action("view", receptacle))
        is_closed = False
        if game.openable >> receptacle & 1:
            is_closed = not opened >> receptacle & 1
            actions.append(Action("open" if is_closed else "close", receptacle))
        contents = state.contents[receptacle]
        if held_object < 0 and not is_closed:
            actions += [
                Action("take", object_number, receptacle) for object_number in iterate_bits(contents & pickupable)
            ]
        elif held_object >= 0:
            actions += [
                Action(verb, held_object, receptacle)
                for verb, allowed_objects in game.treatments[receptacle]
                if allowed_objects >> held_object & 1
            ]
            if not is_closed and game.accepted_objects[receptacle] >> held_object & 1:
                actions.append(Action("move", held_object, receptacle))
        actions += [Action("use", object_number) for object_number in iterate_bits(contents & toggleable)]
    if held_object >= 0:
        actions.append(Action("feel", held_object))
        if game.sharp_objects >> held_object & 1:
            actions += [
                Action("slice", object_number, held_object)
                for object_number in iterate_bits(state.objects_at_places[agent_place] & sliceable)
            ]
    return list(dict.fromkeys(actions)) + list(ALWAYS_LEGAL) if game.shared else actions + list(ALWAYS_LEGAL)


def is_possible(game: Game, state: State, action: Action) -> bool:
    """Returns whether an action is possible."""
    verb, first, second = action
    if verb == "go":
        return game.place[first] >= 0 and game.place[first] != state.agent_place
    if verb == "feel":
        return first == state.held_object
    if verb in ("look", "inventory", "help"):
        return True
    if verb == "use":
        is_in_receptacle = any(state.contents[receptacle] >> first & 1 for receptacle in game.here[state.agent_place])
        return is_in_receptacle and bool(game.objects_with("toggleable") >> first & 1)
    if verb == "slice":
        is_here = bool(state.objects_at_places[state.agent_place] & game.objects_with("sliceable") & 1 << first)
        return is_here and second == state.held_object and bool(game.sharp_objects >> second & 1)
    return _is_possible_at_receptacle(game, state, action)


def _is_possible_at_receptacle(game: Game, state: State, action: Action) -> bool:
    """Returns whether an action at a receptacle is possible."""
    verb, first, second = action
    receptacle = first if verb in ("open", "close", "view") else second
    if game.place[receptacle] != state.agent_place:
        return False
    is_closed = bool((game.openable & ~state.opened) >> receptacle & 1)
    if verb == "view":
        return True
    if verb == "open":
        return is_closed
    if verb == "close":
        return bool((game.openable & state.opened) >> receptacle & 1)
    if verb == "take":
        return (
            state.held_object < 0
            and not is_closed
            and bool(state.contents[receptacle] & game.ability_masks[0] & 1 << first)
        )
    if first != state.held_object:
        return False
    if verb == "move":
        return not is_closed and bool(game.accepted_objects[receptacle] >> first & 1)
    return any(
        treatment == verb and allowed_objects >> first & 1 for treatment, allowed_objects in game.treatments[receptacle]
    )


def apply_action(game: Game, state: State, action: Action) -> State:
    """Applies a possible action and returns the next state; undefined for an impossible action."""
    verb, first, second = action
    if verb == "go":
        return state._replace(agent_place=game.place[first])
    if verb == "take":
        return _apply_take(game, state, first, second)
    if verb == "move":
        return _apply_move(game, state, first, second)
    if verb == "open":
        return state._replace(opened=state.opened | 1 << first)
    if verb == "close":
        return state._replace(opened=state.opened & ~(1 << first))
    if verb == "clean":
        return state._replace(clean=state.clean | 1 << first)
    if verb == "heat":
        return state._replace(hot=state.hot | 1 << first, cool=state.cool & ~(1 << first))
    if verb == "cool":
        return state._replace(cool=state.cool | 1 << first, hot=state.hot & ~(1 << first))
    if verb == "use":
        return state._replace(toggled=state.toggled | 1 << first)
    if verb == "slice":
        return state._replace(sliced=state.sliced | 1 << first)
    return state


def _apply_take(game: Game, state: State, object_number: int, receptacle: int) -> State:
    place_number = game.place[receptacle]
    separated_pairs = state.separated_pairs | {(object_number, receptacle)} if game.shared else state.separated_pairs
    return state._replace(
        held_object=object_number,
        contents=_replace_at(state.contents, receptacle, state.contents[receptacle] & ~(1 << object_number)),
        objects_at_places=_replace_at(
            state.objects_at_places, place_number, state.objects_at_places[place_number] & ~(1 << object_number)
        ),
        separated_pairs=separated_pairs,
    )


def _apply_move(game: Game, state: State, object_number: int, receptacle: int) -> State:
    place_number = game.place[receptacle]
    return state._replace(
        held_object=-1,
        contents=_replace_at(state.contents, receptacle, state.contents[receptacle] | 1 << object_number),
        objects_at_places=_replace_at(
            state.objects_at_places, place_number, state.objects_at_places[place_number] | 1 << object_number
        ),
        separated_pairs=state.separated_pairs - {(object_number, receptacle)} if game.shared else state.separated_pairs,
    )


def _replace_at(masks: tuple[int, ...], index: int, mask: int) -> tuple[int, ...]:
    return (*masks[:index], mask, *masks[index + 1 :])


def is_won(game: Game, state: State) -> bool:
    """Returns whether the goal is reached."""
    family = game.goal.family
    if family == "look":
        if state.held_object < 0 or not game.goal_objects >> state.held_object & 1:
            return False
        lights_on = game.lights & state.toggled
        return bool(lights_on) and any(
            state.contents[receptacle] & lights_on for receptacle in game.here[state.agent_place]
        )
    suitable_objects = game.goal_objects
    if family in APPLIANCE_OF_TREATMENT:
        suitable_objects &= {"clean": state.clean, "hot": state.hot, "cool": state.cool}[FAMILIES[family].flag]
    if family == "two":
        return any((state.contents[receptacle] & suitable_objects).bit_count() >= 2 for receptacle in game.targets)
    return any(state.contents[receptacle] & suitable_objects for receptacle in game.targets)
