"""Two experts: `plan` knows where everything is, `explore` knows only what it has seen.

`plan` is a shortest way to the goal. Its demonstrations would teach to walk straight to a hidden object, which nobody
can who does not see through doors; so demonstrations come from `explore`, which looks into one receptacle after another
in the order in which the room lists them, first into those where such an object may be, and remembers what it saw.
`explain` is the same way with a thought before each action: what was seen, what is held, and what comes next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from evolvent.worlds.household.game import FAMILIES, TREATED_AT, Game, bits
from evolvent.worlds.household.rules import Action, apply, won

__all__ = ["explain", "explore", "plan", "thoughts_said"]

_NEXT = {
    "go": "go to {}",
    "open": "open {}",
    "view": "look at {}",
    "take": "take {} from {}",
    "put": "put {} {} {}",
    "clean": "clean {} with {}",
    "heat": "heat {} with {}",
    "cool": "cool {} with {}",
    "use": "switch on {}",
}
_THOUGHTS = (
    "My task is to. I have to find a an another. I see no on in. What I see on will not do.",
    "I see. I have seen. I have. It has to be clean hot cool. It is now. I need the light of. The is closed.",
    "Next, I need to",
    *_NEXT.values(),
)


class _Walk:
    """A way through a game: the actions so far and where they led."""

    def __init__(self, game: Game) -> None:
        self.game, self.state = game, game.start
        self.actions: list[Action] = []

    def do(self, verb: str, first: int, second: int = -1) -> None:
        action = Action(verb, first, second)
        self.actions.append(action)
        self.state = apply(self.game, self.state, action)

    def stand(self, receptacle: int) -> None:
        """Go to a receptacle, unless it is here."""
        if self.game.place[receptacle] != self.state.at:
            self.do("go", receptacle)

    def closed(self, receptacle: int) -> bool:
        return bool((self.game.openable & ~self.state.opened) >> receptacle & 1)

    def reach(self, receptacle: int) -> None:
        """Go to a receptacle and open it, as far as needed."""
        self.stand(receptacle)
        if self.closed(receptacle):
            self.do("open", receptacle)

    def fetch(self, thing: int, source: int) -> None:
        self.reach(source)
        self.do("take", thing, source)

    def bring(self, thing: int, target: int) -> None:
        self.reach(target)
        self.do("move", thing, target)

    def treat(self, thing: int, at: int) -> None:
        """Clean, heat or cool what is held at an appliance."""
        self.stand(at)
        self.do(self.game.goal.family, thing, at)

    def switch_on(self, light: int, at: int) -> None:
        self.stand(at)
        if not self.state.toggled >> light & 1:
            self.do("use", light)


def plan(game: Game) -> list[Action] | None:
    """A shortest way to the goal, found by trying every choice of objects, receptacles and appliances.

    Of equally short ways the first is taken. None where no choice reaches the goal, [] where it is reached already.
    """
    if won(game, game.start):
        return []
    ways = {"look": _ways_to_look, "two": _ways_to_two}.get(game.goal.family, _ways_to_put)(game)
    found = (walk.actions for walk in ways if won(game, walk.state))
    return min(found, key=len, default=None)


def _sources(game: Game, mask: int) -> Iterator[tuple[int, int]]:
    """(object, receptacle) for all objects of a mask that can be taken from somewhere."""
    for r, place in enumerate(game.place):
        if place >= 0:
            yield from ((o, r) for o in bits(game.start.contents[r] & mask & game.having("pickupable")))


def _reachable(game: Game, of_type: str) -> Sequence[int]:
    return [r for r, kind in enumerate(game.types) if kind == of_type and game.place[r] >= 0]


def _treated(game: Game) -> int:
    """The objects that are at the start what the goal's family asks for."""
    flag = FAMILIES[game.goal.family].flag
    return {"clean": game.start.clean, "hot": game.start.hot, "cool": game.start.cool}.get(flag, -1)


def _ways_to_put(game: Game) -> Iterator[_Walk]:
    appliances = _reachable(game, TREATED_AT.get(game.goal.family, ""))
    for thing, source in _sources(game, game.wanted):
        done = _treated(game) >> thing & 1
        for target in _reachable(game, game.goal.target):
            for appliance in [-1] if done else appliances:
                if game.fits[target] >> thing & 1:
                    walk = _Walk(game)
                    walk.fetch(thing, source)
                    if appliance >= 0:
                        walk.treat(thing, appliance)
                    walk.bring(thing, target)
                    yield walk


def _ways_to_two(game: Game) -> Iterator[_Walk]:
    for target in _reachable(game, game.goal.target):
        there = game.start.contents[target] & game.wanted
        others = [(o, r) for o, r in _sources(game, game.wanted & game.fits[target] & ~there) if r != target]
        for errands in permutations(others, 2 - min(1, there.bit_count())):
            if len({thing for thing, _ in errands}) == len(errands):
                walk = _Walk(game)
                for thing, source in errands:
                    walk.fetch(thing, source)
                    walk.bring(thing, target)
                yield walk


def _ways_to_look(game: Game) -> Iterator[_Walk]:
    lights = [
        (o, r) for r, place in enumerate(game.place) if place >= 0 for o in bits(game.start.contents[r] & game.lights)
    ]
    for thing, source in _sources(game, game.wanted):
        for light, stand in lights:
            walk = _Walk(game)
            walk.fetch(thing, source)
            walk.switch_on(light, stand)
            yield walk


class _Search(_Walk):
    """A walk that knows only what it has seen: receptacles count as empty until they were looked into.

    `thoughts` says why before each action; `_why` is said of what is under way, `_errand` of what is being looked for.
    """

    def __init__(self, game: Game) -> None:
        super().__init__(game)
        self.seen = 0
        self.thoughts: list[str] = []
        self._why = self._errand = ""

    def do(self, verb: str, first: int, second: int = -1) -> None:
        self.thoughts.append(self._thought(Action(verb, first, second)))
        super().do(verb, first, second)
        if verb in ("go", "open", "view") and not self.closed(first):
            self.seen |= 1 << first

    def _thought(self, action: Action) -> str:
        """What led to an action that is about to be done, from what was seen before it."""
        game, (verb, first, second) = self.game, action
        said = [] if self.actions else [f"My task is to {game.task}."]
        if verb in ("go", "open", "view"):
            aim = _NEXT[verb].format(game.names[first])
            said += [f"The {game.names[first]} is closed."] if verb == "open" else []
            said.append(self._why)
        elif verb == "use":
            aim = _NEXT[verb].format(game.object_names[first])
            said.append(self._why)
        elif verb == "move":
            aim = _NEXT["put"].format(game.object_names[first], self._in(second), game.names[second])
            said.append(self._why)
        else:
            aim = _NEXT[verb].format(game.object_names[first], game.names[second])
            said.append(f"I see {self._where(first, second)}." if verb == "take" else self._why)
        return " ".join([*filter(None, said), f"Next, I need to {aim}."])

    def _in(self, receptacle: int) -> str:
        return "in" if self.game.openable >> receptacle & 1 else "on"

    def _where(self, thing: int, receptacle: int) -> str:
        game = self.game
        return f"{game.object_names[thing]} {self._in(receptacle)} {game.names[receptacle]}"

    def _held(self, thing: int) -> str:
        """That it is held, and what was done to it."""
        flag = FAMILIES[self.game.goal.family].flag
        done = any(action.verb == self.game.goal.family and action.first == thing for action in self.actions)
        return f"I have {self.game.object_names[thing]}.{f' It is {flag} now.' if flag and done else ''}"

    def stand(self, receptacle: int) -> None:
        super().stand(receptacle)
        self._why = self._errand or self._why  # what was seen elsewhere counts no more

    def fetch(self, thing: int, source: int) -> None:
        self._why, self._errand = f"I have seen {self._where(thing, source)}.", ""
        super().fetch(thing, source)

    def bring(self, thing: int, target: int) -> None:
        self._why, self._errand = self._held(thing), ""
        super().bring(thing, target)

    def treat(self, thing: int, at: int) -> None:
        self._why = f"{self._held(thing)} It has to be {FAMILIES[self.game.goal.family].flag}."
        super().treat(thing, at)

    def switch_on(self, light: int, at: int) -> None:
        self._why, self._errand = (
            f"{self._held(self.state.held)} I need the light of {self.game.object_names[light]}.",
            "",
        )
        super().switch_on(light, at)

    def look_into(self, receptacle: int) -> None:
        self.reach(receptacle)
        if not self.seen >> receptacle & 1:  # it stood open at a place that was reached through another one
            self.do("view", receptacle)

    def known(self, receptacle: int) -> int:
        return self.state.contents[receptacle] if self.seen >> receptacle & 1 else 0

    def find(self, mask: int, *, kind: str, avoid: Sequence[int] = ()) -> tuple[int, int] | None:
        """An object of the mask and where it is, seen already or searched for now."""
        game = self.game
        for r in range(len(game.ids)):
            if r not in avoid and self.known(r) & mask:
                return next(bits(self.known(r) & mask)), r
        unseen = [r for r, place in enumerate(game.place) if place >= 0 and not self.seen >> r & 1]
        unseen.sort(key=lambda r: (r in avoid, (game.types[r], kind) not in game.holds))
        again = any(action.verb == "move" for action in self.actions)
        errand = f"I have to find {'another' if again else 'an' if kind[0] in 'aeiou' else 'a'} {kind}."
        errand = f"{self._held(self.state.held)} {errand}" if self.state.held >= 0 else errand
        self._why = self._errand = errand
        for r in unseen:
            self.look_into(r)
            if r not in avoid and self.known(r) & mask:
                return next(bits(self.known(r) & mask)), r
            there = bool(self.known(r) & game.of_type.get(kind, 0))
            place = f"{self._in(r)} {game.names[r]}"
            self._why = f"{f'What I see {place} will not do.' if there else f'I see no {kind} {place}.'} {errand}"
        return None

    def target(self) -> int | None:
        """Where to put things: where one of them is seen to be, else what stands open, else the first of its type."""
        choices = _reachable(self.game, self.game.goal.target)
        return min(
            choices,
            key=lambda r: (not self.known(r) & self.game.wanted, self.closed(r) or not self.seen >> r & 1, r),
            default=None,
        )

    def one_more(self) -> bool:
        """Find an object, treat it where the goal asks for it, and put it where it belongs; False where that fails."""
        game, family = self.game, self.game.goal.family
        two = family == "two"
        target = self.target()
        # Where the goal wants things to lie there is nothing left to fetch: it would have been reached.
        avoid = () if target is None else (target,) if two else game.targets if family == "put" else ()
        found = self.find(game.wanted & game.having("pickupable"), kind=game.goal.object, avoid=avoid)
        target = target if two else self.target()
        if found is None or target is None or not game.fits[target] >> found[0] & 1:
            return False
        self.fetch(*found)
        if family in TREATED_AT and not _treated(game) >> found[0] & 1:
            appliances = _reachable(game, TREATED_AT[family])
            if not appliances:
                return False
            self.treat(found[0], appliances[0])
        self.bring(found[0], target)
        return True


def explore(game: Game) -> list[Action] | None:
    """A way to the goal that acts only on what it has seen; None where it finds none. [] where the goal is reached."""
    found = explain(game)
    return None if found is None else [action for action, _ in found]


def explain(game: Game) -> list[tuple[Action, str]] | None:
    """The way of `explore`, each action with the thought that led to it: nothing in it that was not seen before."""
    search = _Search(game)
    if game.goal.family == "look":
        thing = game.wanted & game.having("pickupable")
        found = None if won(game, game.start) else search.find(thing, kind=game.goal.object)
        if found is not None:
            search.fetch(*found)
            light = search.find(game.lights, kind=game.goal.target)
            if light is not None:
                search.switch_on(*light)
    else:
        for _ in range(2 if game.goal.family == "two" else 1):
            if won(game, search.state) or not search.one_more():
                break
    return list(zip(search.actions, search.thoughts, strict=True)) if won(game, search.state) else None


def thoughts_said() -> Sequence[str]:
    """Texts that hold every word and mark of thoughts that observations and tasks do not have."""
    return [text.replace("{}", " ") for text in _THOUGHTS]
