"""Two experts: `plan` knows where everything is, `explore` knows its own observations only.

`plan` is a shortest plan. Its demonstrations would teach walking straight to a hidden object, which is
impossible without seeing through doors. So demonstrations come from `explore`, which looks into one receptacle
after another, in the room's order but likely ones first, and remembers their contents. `explain` adds a thought
before each action: the observation, the held object, and the next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from evolvent.worlds.household.game import APPLIANCE_OF_TREATMENT, FAMILIES, Game, iterate_bits
from evolvent.worlds.household.rules import Action, apply_action, is_won

__all__ = ["explain", "explore", "plan", "thought_texts"]

_INTENTIONS = {
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
_THOUGHT_TEXTS = (
    "My task is to. I have to find a an another. I see no on in. What I see on will not do.",
    "I see. I have seen. I have. It has to be clean hot cool. It is now. I need the light of. The is closed.",
    "Next, I need to",
    *_INTENTIONS.values(),
)


class _Walk:
    """A plan under construction: the actions so far and the state after them."""

    def __init__(self, game: Game) -> None:
        self.game, self.state = game, game.start
        self.actions: list[Action] = []

    def perform(self, verb: str, first: int, second: int = -1) -> None:
        action = Action(verb, first, second)
        self.actions.append(action)
        self.state = apply_action(self.game, self.state, action)

    def go_to(self, receptacle: int) -> None:
        """Moves to a receptacle, unless it is here."""
        if self.game.place[receptacle] != self.state.agent_place:
            self.perform("go", receptacle)

    def is_closed(self, receptacle: int) -> bool:
        return bool((self.game.openable & ~self.state.opened) >> receptacle & 1)

    def go_and_open(self, receptacle: int) -> None:
        """Moves to a receptacle and opens it, as far as needed."""
        self.go_to(receptacle)
        if self.is_closed(receptacle):
            self.perform("open", receptacle)

    def fetch(self, object_number: int, source: int) -> None:
        self.go_and_open(source)
        self.perform("take", object_number, source)

    def put_in(self, object_number: int, target: int) -> None:
        self.go_and_open(target)
        self.perform("move", object_number, target)

    def treat(self, object_number: int, appliance: int) -> None:
        """Applies the treatment of the goal's family, cleaning, heating or cooling, to the held object."""
        self.go_to(appliance)
        self.perform(self.game.goal.family, object_number, appliance)

    def switch_on(self, light: int, receptacle: int) -> None:
        self.go_to(receptacle)
        if not self.state.toggled >> light & 1:
            self.perform("use", light)


def plan(game: Game) -> list[Action] | None:
    """Returns a shortest plan, found by trying every choice of objects, receptacles and appliances.

    Of equally short plans the first is taken. None where no choice reaches the goal, [] where it is already
    reached.
    """
    if is_won(game, game.start):
        return []
    walks = {"look": _walks_to_look, "two": _walks_to_put_two}.get(game.goal.family, _walks_to_put)(game)
    plans = (walk.actions for walk in walks if is_won(game, walk.state))
    return min(plans, key=len, default=None)


def _find_sources(game: Game, mask: int) -> Iterator[tuple[int, int]]:
    """Yields (object, receptacle) for all objects of a mask that can be taken from a reachable receptacle."""
    for receptacle, place_number in enumerate(game.place):
        if place_number >= 0:
            yield from (
                (object_number, receptacle)
                for object_number in iterate_bits(
                    game.start.contents[receptacle] & mask & game.objects_with("pickupable")
                )
            )


def _reachable_receptacles(game: Game, receptacle_type: str) -> Sequence[int]:
    return [
        receptacle
        for receptacle, kind in enumerate(game.types)
        if kind == receptacle_type and game.place[receptacle] >= 0
    ]


def _treated_at_start(game: Game) -> int:
    """Returns the objects that have the flag of the goal's family at the start."""
    flag = FAMILIES[game.goal.family].flag
    return {"clean": game.start.clean, "hot": game.start.hot, "cool": game.start.cool}.get(flag, -1)


def _walks_to_put(game: Game) -> Iterator[_Walk]:
    appliances = _reachable_receptacles(game, APPLIANCE_OF_TREATMENT.get(game.goal.family, ""))
    for object_number, source in _find_sources(game, game.goal_objects):
        is_treated = _treated_at_start(game) >> object_number & 1
        for target in _reachable_receptacles(game, game.goal.target):
            for appliance in [-1] if is_treated else appliances:
                if game.accepted_objects[target] >> object_number & 1:
                    walk = _Walk(game)
                    walk.fetch(object_number, source)
                    if appliance >= 0:
                        walk.treat(object_number, appliance)
                    walk.put_in(object_number, target)
                    yield walk


def _walks_to_put_two(game: Game) -> Iterator[_Walk]:
    for target in _reachable_receptacles(game, game.goal.target):
        objects_in_target = game.start.contents[target] & game.goal_objects
        sources = [
            (o, r)
            for o, r in _find_sources(game, game.goal_objects & game.accepted_objects[target] & ~objects_in_target)
            if r != target
        ]
        for errands in permutations(sources, 2 - min(1, objects_in_target.bit_count())):
            if len({object_number for object_number, _ in errands}) == len(errands):
                walk = _Walk(game)
                for object_number, source in errands:
                    walk.fetch(object_number, source)
                    walk.put_in(object_number, target)
                yield walk


def _walks_to_look(game: Game) -> Iterator[_Walk]:
    lights = [
        (o, r)
        for r, place_number in enumerate(game.place)
        if place_number >= 0
        for o in iterate_bits(game.start.contents[r] & game.lights)
    ]
    for object_number, source in _find_sources(game, game.goal_objects):
        for light, receptacle in lights:
            walk = _Walk(game)
            walk.fetch(object_number, source)
            walk.switch_on(light, receptacle)
            yield walk


class _Search(_Walk):
    """A walk that knows its own observations only: receptacles count as empty until they were looked into.

    `thoughts` gives a reason before each action; `_why` is the reason of the current step, `_errand` that of the
    search.
    """

    def __init__(self, game: Game) -> None:
        super().__init__(game)
        self.outcomes = 0
        self.thoughts: list[str] = []
        self._why = self._errand = ""

    def perform(self, verb: str, first: int, second: int = -1) -> None:
        self.thoughts.append(self._build_thought(Action(verb, first, second)))
        super().perform(verb, first, second)
        if verb in ("go", "open", "view") and not self.is_closed(first):
            self.outcomes |= 1 << first

    def _build_thought(self, action: Action) -> str:
        """Builds the thought before an action, from the observations before it."""
        game, (verb, first, second) = self.game, action
        sentences = [] if self.actions else [f"My task is to {game.task}."]
        if verb in ("go", "open", "view"):
            intention = _INTENTIONS[verb].format(game.names[first])
            sentences += [f"The {game.names[first]} is closed."] if verb == "open" else []
            sentences.append(self._why)
        elif verb == "use":
            intention = _INTENTIONS[verb].format(game.object_names[first])
            sentences.append(self._why)
        elif verb == "move":
            intention = _INTENTIONS["put"].format(
                game.object_names[first], self._preposition(second), game.names[second]
            )
            sentences.append(self._why)
        else:
            intention = _INTENTIONS[verb].format(game.object_names[first], game.names[second])
            sentences.append(f"I see {self._describe_location(first, second)}." if verb == "take" else self._why)
        return " ".join([*filter(None, sentences), f"Next, I need to {intention}."])

    def _preposition(self, receptacle: int) -> str:
        return "in" if self.game.openable >> receptacle & 1 else "on"

    def _describe_location(self, object_number: int, receptacle: int) -> str:
        game = self.game
        return f"{game.object_names[object_number]} {self._preposition(receptacle)} {game.names[receptacle]}"

    def _describe_held(self, object_number: int) -> str:
        """Describes the held object and its treatment."""
        flag = FAMILIES[self.game.goal.family].flag
        is_treated = any(
            action.verb == self.game.goal.family and action.first == object_number for action in self.actions
        )
        return f"I have {self.game.object_names[object_number]}.{f' It is {flag} now.' if flag and is_treated else ''}"

    def go_to(self, receptacle: int) -> None:
        super().go_to(receptacle)
        self._why = self._errand or self._why  # what was seen elsewhere counts no more

    def fetch(self, object_number: int, source: int) -> None:
        self._why, self._errand = f"I have seen {self._describe_location(object_number, source)}.", ""
        super().fetch(object_number, source)

    def put_in(self, object_number: int, target: int) -> None:
        self._why, self._errand = self._describe_held(object_number), ""
        super().put_in(object_number, target)

    def treat(self, object_number: int, appliance: int) -> None:
        self._why = f"{self._describe_held(object_number)} It has to be {FAMILIES[self.game.goal.family].flag}."
        super().treat(object_number, appliance)

    def switch_on(self, light: int, receptacle: int) -> None:
        self._why, self._errand = (
            f"{self._describe_held(self.state.held_object)} I need the light of {self.game.object_names[light]}.",
            "",
        )
        super().switch_on(light, receptacle)

    def look_into(self, receptacle: int) -> None:
        self.go_and_open(receptacle)
        if not self.outcomes >> receptacle & 1:  # it stood open at a place that was reached through another one
            self.perform("view", receptacle)

    def known_contents(self, receptacle: int) -> int:
        return self.state.contents[receptacle] if self.outcomes >> receptacle & 1 else 0

    def find(self, mask: int, *, kind: str, avoid: Sequence[int] = ()) -> tuple[int, int] | None:
        """Finds an object of the mask and its receptacle, among observed contents first, else by searching."""
        game = self.game
        for r in range(len(game.ids)):
            if r not in avoid and self.known_contents(r) & mask:
                return next(iterate_bits(self.known_contents(r) & mask)), r
        unseen = [r for r, place_text in enumerate(game.place) if place_text >= 0 and not self.outcomes >> r & 1]
        unseen.sort(key=lambda r: (r in avoid, (game.types[r], kind) not in game.holds))
        is_second = any(action.verb == "move" for action in self.actions)
        errand = f"I have to find {'another' if is_second else 'an' if kind[0] in 'aeiou' else 'a'} {kind}."
        errand = f"{self._describe_held(self.state.held_object)} {errand}" if self.state.held_object >= 0 else errand
        self._why = self._errand = errand
        for r in unseen:
            self.look_into(r)
            if r not in avoid and self.known_contents(r) & mask:
                return next(iterate_bits(self.known_contents(r) & mask)), r
            has_unusable = bool(self.known_contents(r) & game.objects_by_type.get(kind, 0))
            place_text = f"{self._preposition(r)} {game.names[r]}"
            finding = f"What I see {place_text} will not do." if has_unusable else f"I see no {kind} {place_text}."
            self._why = f"{finding} {errand}"
        return None

    def choose_target(self) -> int | None:
        """Chooses the receptacle for the objects: one known to hold some, else an open one, else the first of its
        type.
        """
        choices = _reachable_receptacles(self.game, self.game.goal.target)
        return min(
            choices,
            key=lambda r: (
                not self.known_contents(r) & self.game.goal_objects,
                self.is_closed(r) or not self.outcomes >> r & 1,
                r,
            ),
            default=None,
        )

    def deliver_object(self) -> bool:
        """Finds an object, treats it where the goal demands it, and puts it into the target; returns False if that
        fails.
        """
        game, family = self.game, self.game.goal.family
        needs_two = family == "two"
        target = self.choose_target()
        # Where the goal wants things to lie there is nothing left to fetch: it would have been reached.
        avoid = () if target is None else (target,) if needs_two else game.targets if family == "put" else ()
        source = self.find(game.goal_objects & game.objects_with("pickupable"), kind=game.goal.object, avoid=avoid)
        target = target if needs_two else self.choose_target()
        if source is None or target is None or not game.accepted_objects[target] >> source[0] & 1:
            return False
        self.fetch(*source)
        if family in APPLIANCE_OF_TREATMENT and not _treated_at_start(game) >> source[0] & 1:
            appliances = _reachable_receptacles(game, APPLIANCE_OF_TREATMENT[family])
            if not appliances:
                return False
            self.treat(source[0], appliances[0])
        self.put_in(source[0], target)
        return True


def explore(game: Game) -> list[Action] | None:
    """Finds a plan from observations only; returns None if it finds none, [] if the goal is already reached."""
    explained_plan = explain(game)
    return None if explained_plan is None else [action for action, _ in explained_plan]


def explain(game: Game) -> list[tuple[Action, str]] | None:
    """Explains the plan of `explore`: returns each action with its thought, which uses earlier observations only."""
    search = _Search(game)
    if game.goal.family == "look":
        candidate_objects = game.goal_objects & game.objects_with("pickupable")
        source = None if is_won(game, game.start) else search.find(candidate_objects, kind=game.goal.object)
        if source is not None:
            search.fetch(*source)
            light = search.find(game.lights, kind=game.goal.target)
            if light is not None:
                search.switch_on(*light)
    else:
        for _ in range(2 if game.goal.family == "two" else 1):
            if is_won(game, search.state) or not search.deliver_object():
                break
    return list(zip(search.actions, search.thoughts, strict=True)) if is_won(game, search.state) else None


def thought_texts() -> Sequence[str]:
    """Returns texts with every word and mark of thoughts that observations and tasks lack."""
    return [text.replace("{}", " ") for text in _THOUGHT_TEXTS]
