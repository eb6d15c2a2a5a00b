"""The rules of a household: which actions are possible in a state, what they change, and whether the goal is reached.

Pure functions of a game and a state. The rules are those of alfworld 0.4.2's planning domain as its engine plays it, of
which some are not what one might expect:

- `clean`, `heat` and `cool` need neither an open appliance nor a put: the object is held in front of it;
- heating ends being cool and cooling ends being hot, cleaning changes neither;
- a light is used without opening what it is in, and once used it counts as used for ever;
- receptacles have no limit of capacity; `examine` of an object is possible only for the one that is held;
- nothing leads back to the place where the agent begins, since no receptacle stands there.
"""

from __future__ import annotations

from typing import NamedTuple

from evolvent.worlds.household.game import FAMILIES, TREATED_AT, Game, State, bits

__all__ = ["FREE", "Action", "apply", "legal", "possible", "won"]


class Action(NamedTuple):
    """A verb and the numbers of what it is about: receptacles for most verbs, as said below.

    `go`, `open`, `close`, `view` (examine a receptacle): (receptacle). `take`, `move`, `clean`, `heat`, `cool`:
    (object, receptacle). `use`, `feel` (examine an object): (object). `slice`: (object, knife). `look`, `inventory`,
    `help`: ().
    """

    verb: str
    first: int = -1
    second: int = -1


FREE: tuple[Action, ...] = (Action("help"), Action("inventory"), Action("look"))
"""The actions that are always possible."""


def legal(game: Game, state: State) -> list[Action]:
    """Every possible action, in no particular order."""
    at, held, opened = state.at, state.held, state.opened
    found = [Action("go", r) for r, place in enumerate(game.place) if place != at and place >= 0]
    pickupable, toggleable, sliceable = game.properties
    for r in game.here[at]:
        found.append(Action("view", r))
        closed = False
        if game.openable >> r & 1:
            closed = not opened >> r & 1
            found.append(Action("open" if closed else "close", r))
        contents = state.contents[r]
        if held < 0 and not closed:
            found += [Action("take", o, r) for o in bits(contents & pickupable)]
        elif held >= 0:
            found += [Action(verb, held, r) for verb, able in game.treats[r] if able >> held & 1]
            if not closed and game.fits[r] >> held & 1:
                found.append(Action("move", held, r))
        found += [Action("use", o) for o in bits(contents & toggleable)]
    if held >= 0:
        found.append(Action("feel", held))
        if game.sharp >> held & 1:
            found += [Action("slice", o, held) for o in bits(state.lying[at] & sliceable)]
    return list(dict.fromkeys(found)) + list(FREE) if game.shared else found + list(FREE)


def possible(game: Game, state: State, action: Action) -> bool:
    """Whether the action is one of the legal ones."""
    verb, first, second = action
    if verb == "go":
        return game.place[first] >= 0 and game.place[first] != state.at
    if verb == "feel":
        return first == state.held
    if verb in ("look", "inventory", "help"):
        return True
    if verb == "use":
        inside = any(state.contents[r] >> first & 1 for r in game.here[state.at])
        return inside and bool(game.having("toggleable") >> first & 1)
    if verb == "slice":
        lies = bool(state.lying[state.at] & game.having("sliceable") & 1 << first)
        return lies and second == state.held and bool(game.sharp >> second & 1)
    return _possible_at(game, state, action)


def _possible_at(game: Game, state: State, action: Action) -> bool:
    """The same for what is done at a receptacle."""
    verb, first, second = action
    r = first if verb in ("open", "close", "view") else second
    if game.place[r] != state.at:
        return False
    closed = bool((game.openable & ~state.opened) >> r & 1)
    if verb == "view":
        return True
    if verb == "open":
        return closed
    if verb == "close":
        return bool((game.openable & state.opened) >> r & 1)
    if verb == "take":
        return state.held < 0 and not closed and bool(state.contents[r] & game.properties[0] & 1 << first)
    if first != state.held:
        return False
    if verb == "move":
        return not closed and bool(game.fits[r] >> first & 1)
    return any(way == verb and able >> first & 1 for way, able in game.treats[r])


def apply(game: Game, state: State, action: Action) -> State:
    """The state after a possible action; what an impossible one would give is not defined."""
    verb, first, second = action
    if verb == "go":
        return state._replace(at=game.place[first])
    if verb == "take":
        return _take(game, state, first, second)
    if verb == "move":
        return _move(game, state, first, second)
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


def _take(game: Game, state: State, o: int, r: int) -> State:
    place = game.place[r]
    parted = state.parted | {(o, r)} if game.shared else state.parted
    return state._replace(
        held=o,
        contents=_changed(state.contents, r, state.contents[r] & ~(1 << o)),
        lying=_changed(state.lying, place, state.lying[place] & ~(1 << o)),
        parted=parted,
    )


def _move(game: Game, state: State, o: int, r: int) -> State:
    place = game.place[r]
    return state._replace(
        held=-1,
        contents=_changed(state.contents, r, state.contents[r] | 1 << o),
        lying=_changed(state.lying, place, state.lying[place] | 1 << o),
        parted=state.parted - {(o, r)} if game.shared else state.parted,
    )


def _changed(row: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*row[:at], value, *row[at + 1 :])


def won(game: Game, state: State) -> bool:
    """Whether the goal is reached."""
    family = game.goal.family
    if family == "look":
        if state.held < 0 or not game.wanted >> state.held & 1:
            return False
        lit = game.lights & state.toggled
        return bool(lit) and any(state.contents[r] & lit for r in game.here[state.at])
    wanted = game.wanted
    if family in TREATED_AT:
        wanted &= {"clean": state.clean, "hot": state.hot, "cool": state.cool}[FAMILIES[family].flag]
    if family == "two":
        return any((state.contents[r] & wanted).bit_count() >= 2 for r in game.targets)
    return any(state.contents[r] & wanted for r in game.targets)
