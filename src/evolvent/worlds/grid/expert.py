"""The expert of the grid world: knows the whole map, acts by what it sees.

It heads for what its mission asks for next. What it can see and reach it goes to by a macro; for what it cannot see it
turns right until it does; what lies behind a closed door it reaches by that door, behind a locked one by fetching the
key first. What stands in the way it carries aside. Where no macro helps it makes one move along the way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from itertools import count

from evolvent.worlds.grid.map import (
    CLOSED,
    DOOR,
    DROP,
    FLOOR,
    FORWARD,
    GOAL,
    KEY,
    LEFT,
    LOCKED,
    OPEN,
    PICKUP,
    RIGHT,
    TOGGLE,
    WALL,
    Pose,
    Thing,
    moved,
)
from evolvent.worlds.grid.mission import GO, OPEN_DOOR, PICK, Atom, Progress
from evolvent.worlds.grid.plan import BESIDE, FACE, MOVES, STAND, Macro, path
from evolvent.worlds.grid.scene import Scene, act, turn_of
from evolvent.worlds.grid.view import ahead_of

__all__ = ["solve"]

_NAMES = {move: name for name, move in MOVES.items()}
_Verb = tuple[int, tuple[int, ...]]
_GO, _STAND, _PICK = (FACE, ()), (STAND, ()), (FACE, (PICKUP,))
_THROUGH, _DROP = (FACE, (TOGGLE, FORWARD)), (BESIDE, (DROP,))
_BLOCKED, _SHUT = 30, 40  # what a thing or a locked door in the way costs, in steps
_DEEPEST = 12  # errands within errands
_NONE: frozenset[int] = frozenset()


def solve(scene: Scene, pose: Pose | None = None, progress: Progress | None = None, *, most: int) -> list[str] | None:
    """Actions that fulfil the mission from the beginning or from another moment; None if `most` do not suffice."""
    expert = _Expert(scene, pose or scene.board.start, progress or Progress(), most)
    try:
        expert.run()
    except _Stuck:
        return None
    return expert.plan if expert.verdict else None


class _Stuck(Exception):
    """The expert does not know what to do, or takes too long."""


class _Moved(Exception):
    """The mission has moved on: whatever errand was on the way, think again."""


class _Expert:
    """An episode as the expert plays it in its mind."""

    def __init__(self, scene: Scene, pose: Pose, progress: Progress, most: int) -> None:
        self.scene, self.board, self.pose, self.progress = scene, scene.board, pose, progress
        self.plan: list[str] = []
        self.most, self.depth = most, 0
        self.verdict: bool | None = None

    def run(self) -> None:
        """Play until the mission is fulfilled or has failed."""
        while self.verdict is None:
            self.depth = 0
            atoms = self.scene.mission.stages[self.progress.stage]
            try:
                self.pursue(next(atom for number, atom in enumerate(atoms) if not self.progress.done >> number & 1))
            except _Moved:
                continue
            raise _Stuck

    def do(self, *actions: str) -> None:
        """Take actions."""
        for action in actions:
            if len(self.plan) >= self.most:
                raise _Stuck
            before = self.progress
            outcome = act(self.scene, turn_of(self.scene, self.pose), action, progress=before)
            self.plan.append(action)
            self.pose, self.progress, self.verdict = outcome.pose, outcome.progress, outcome.verdict
            if self.verdict is not None or self.progress != before:
                raise _Moved

    # --- errands ---------------------------------------------------------------------------------------------------

    def pursue(self, atom: Atom) -> None:
        """Fulfil one atom."""
        if atom.verb == GO:
            self.go(atom.codes, _STAND if GOAL in atom.codes else _GO)
            self.do("turn right", "turn left")  # it was there already, which counts after the next move only
        elif atom.verb == OPEN_DOOR:
            self.open(atom.codes)
        elif atom.verb == PICK:
            self.fetch(atom.codes)
        else:
            if self.pose.hold not in atom.codes:
                self.fetch(atom.codes - atom.fixed or atom.codes)
            self.go(atom.fixed - {self.pose.hold}, _DROP)

    def open(self, codes: Collection[int]) -> None:
        """Open one of these doors; where all are open, one is closed first."""
        shut = [code for code in codes if self.board.thing(code).state != OPEN and code in self.pose.cells]
        if shut:
            self.go(shut, _THROUGH)
        self.go(codes, _GO)
        self.do(_NAMES[TOGGLE], _NAMES[TOGGLE])

    def fetch(self, codes: Collection[int]) -> None:
        """Pick one of these up: unlock what bars the way to it and put down what is carried first."""
        locked: int | None = 0
        while locked is not None:
            route = self.route(codes)
            locked = self.obstacle(route[:-1], shut=(LOCKED,))
            if locked is not None:
                self.unlock(self.pose.cells[locked], frozenset(route))
        self.go(codes, _PICK)

    def go(self, codes: Collection[int], verb: _Verb) -> None:
        """Do `verb` with one of the things of these codes, opening and clearing the way."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _Stuck
        while not self.advance(codes, verb):
            pass
        self.depth -= 1

    def advance(self, codes: Collection[int], verb: _Verb) -> bool:
        """Do it if that can be seen, else make one step on the way; True when it is done."""
        actions = self.seen(self.pose, codes, verb)
        if actions:
            self.do(*actions)
            return True
        route = self.route(codes)
        if verb == _PICK and self.pose.hold:
            self.lay_down(frozenset(route))
            return False
        if verb == _GO and [self.front(self.pose)] == route:
            return True
        waypoint = self.obstacle(route[:-1])
        if waypoint is None and verb == _THROUGH:
            waypoint = route[-1]
        if waypoint is not None:
            code = self.pose.cells[waypoint]
            if not self.passable(code):
                self.clear(code, frozenset(route))
                return self.pose.cells[waypoint] != code and waypoint == route[-1]
            codes, verb = (code,), _THROUGH
            actions = self.seen(self.pose, codes, verb)
            if actions:
                self.do(*actions)
                return waypoint == route[-1]
        self.look_or_step(route, codes, verb)
        return False

    def look_or_step(self, route: list[int], codes: Collection[int], verb: _Verb) -> None:
        """Turn right if turning brings it into reach; else through an open door, or one move, along the route."""
        for turns in (1, 2, 3):
            if self.seen(self.pose._replace(way=(self.pose.way + turns) % 4), codes, verb):
                self.do("turn right")
                return
        doorway = self.obstacle(route[:-1], shut=(OPEN,))
        through = self.seen(self.pose, (self.pose.cells[doorway],), _STAND) if doorway is not None else ()
        if through:
            self.do(*through)
            return
        turns = (self.board.ahead.index(route[0] - self.pose.at) - self.pose.way) % 4
        if turns:
            self.do("turn left" if turns == 3 else "turn right")
        elif moved(self.board, self.pose, FORWARD) is not None:
            self.do("move forward")
        else:
            self.thin_out(route[-1])

    def thin_out(self, cell: int) -> None:
        """Carry away one of the things around a cell, else what is on it: there is no way to a place beside it."""
        places = [*(cell + step for step in self.steps()), cell]
        crowd = [
            code
            for code in (self.pose.cells[at] for at in places)
            if self.board.things[code] and self.board.thing(code).type != DOOR
        ]
        if not crowd:
            raise _Stuck
        self.clear(crowd[0], frozenset(places))

    def clear(self, code: int, keep: frozenset[int]) -> None:
        """Out of the way with it: unlock the door, carry the thing aside; then take up again what was carried."""
        held = self.pose.hold
        door = self.board.thing(code)
        if door.type == DOOR:
            self.unlock(code, keep)
        else:
            if held:
                self.lay_down(keep)
            self.go((code,), _PICK)
            self.lay_down(keep)
        if held and self.pose.hold != held:
            self.fetch((held,))

    def unlock(self, code: int, keep: frozenset[int]) -> None:
        """Fetch the key of a locked door, out of its box if need be, and open the door."""
        if not self.passable(code):
            colour = self.board.thing(code).colour
            keys = {
                number
                for number, key in enumerate(self.board.things)
                if key is not None and key.type == KEY and key.colour == colour
            }
            if keys.isdisjoint(self.pose.cells):
                self.go([box for box, held in self.board.inside.items() if held in keys], _GO)
                self.do(_NAMES[TOGGLE])
            if self.pose.hold:
                self.lay_down(keep)
            self.go(keys, _PICK)
        self.go((code,), _THROUGH)

    def lay_down(self, keep: frozenset[int]) -> None:
        """Put down what is carried at the nearest place that is not to be kept free, rather not beside a door."""
        for careful in (True, False):
            came: dict[Pose, tuple[Pose, int]] = {self.pose: (self.pose, -1)}
            queue = [self.pose]
            for pose in queue:
                if self.spare(pose, keep, careful=careful):
                    self.do(*(_NAMES[move] for move in _moves(came, pose)), _NAMES[DROP])
                    return
                for move in (FORWARD, RIGHT, LEFT):
                    then = moved(self.board, pose, move)
                    if then is not None and then not in came:
                        came[then] = (pose, move)
                        queue.append(then)
        raise _Stuck

    # --- what it knows ---------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """One step ahead, to the right, back and to the left of where the agent looks: what is decided does not depend
        on how the map is turned."""
        return [self.board.ahead[(self.pose.way + turns) % 4] for turns in range(4)]

    def front(self, pose: Pose) -> int:
        return pose.at + self.board.ahead[pose.way]

    def spare(self, pose: Pose, keep: frozenset[int], *, careful: bool) -> bool:
        """Whether something may be put down in front of this pose."""
        front = self.front(pose)
        if pose.cells[front] != FLOOR or front in keep:
            return False
        if not careful:
            return True
        around = [pose.at, *(front + step for step in self.board.ahead)]
        return all(
            self.board.things[pose.cells[at]] is None or self.board.thing(pose.cells[at]).type != DOOR for at in around
        )

    def seen(self, pose: Pose, codes: Collection[int], verb: _Verb) -> tuple[str, ...]:
        """The actions that do it in a pose with the nearest of the things in view; none where that cannot be."""
        turn = turn_of(self.scene, pose)
        for thing in turn.sight.things:
            if pose.cells[ahead_of(self.board, pose, thing.view)] in codes:
                wanted = Macro(verb[0], thing.view, verb[1])
                name = next((name for name, found in turn.actions.items() if found == wanted), None)
                if name is not None:
                    return (name,)
                walk = path(BESIDE, thing.view, turn.sight.walkable, floor=turn.sight.floor) if verb == _DROP else None
                if walk is not None and not self.scene.plain:
                    return tuple(_NAMES[move] for move in (*walk, DROP))
        return ()

    def passable(self, code: int) -> bool:
        """Whether it is a door that can be opened with what is carried."""
        door, held = self.board.thing(code), self.board.things[self.pose.hold]
        return door.type == DOOR and (door.state != LOCKED or (held is not None and _fits(held, door)))

    def obstacle(self, route: list[int], *, shut: Collection[str] = (CLOSED, LOCKED, "")) -> int | None:
        """The first cell of a route with something of such a state on it: a door to open, a thing in the way."""
        for cell in route:
            thing = self.board.things[self.pose.cells[cell]]
            if thing is not None and thing.state in shut:
                return cell
        return None

    def route(self, codes: Collection[int]) -> list[int]:
        """The cells of the cheapest way to one of the things, that of the thing last.

        What is carried is put down first where the way leads to it, and a doorway left that is itself what is wanted.
        """
        if self.pose.hold in codes and self.pose.hold:
            self.lay_down(_NONE)
        start, cells = self.pose.at, self.pose.cells
        best, came = {start: 0}, {start: start}
        queue, order = [(0, 0, start)], count(1)
        while queue:
            cost, _, cell = heappop(queue)
            if cell != start and cells[cell] in codes:
                return list(_back(came, cell))[::-1]
            for step in self.steps():
                then, price = cell + step, self.price(cell + step, codes)
                if price and (then not in best or cost + price < best[then]):
                    best[then], came[then] = cost + price, cell
                    heappush(queue, (cost + price, next(order), then))
        if cells[start] not in codes:
            raise _Stuck
        self.do("turn right" if moved(self.board, self.pose, FORWARD) is None else "move forward")
        return self.route(codes)

    def price(self, cell: int, codes: Collection[int]) -> int:
        """What a cell of a way costs; 0: no way."""
        code = self.pose.cells[cell]
        if code == WALL:
            return 0
        thing = self.board.things[code]
        if code in codes or thing is None or thing.state == OPEN:
            return 1
        if thing.type == DOOR:
            return 2 if self.passable(code) else _SHUT
        return _BLOCKED


def _fits(key: Thing, door: Thing) -> bool:
    return key.type == KEY and key.colour == door.colour


def _back(came: dict[int, int], cell: int) -> Iterator[int]:
    while came[cell] != cell:
        yield cell
        cell = came[cell]


def _moves(came: dict[Pose, tuple[Pose, int]], pose: Pose) -> list[int]:
    found = []
    while came[pose][1] >= 0:
        pose, move = came[pose]
        found.append(move)
    return found[::-1]
