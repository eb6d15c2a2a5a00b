"""Expert of the grid world: knows the whole map, but acts on visible objects.

It heads for the next goal of its mission. It reaches visible objects by a macro; for invisible ones it turns
right until they are visible. It reaches objects behind a closed door through that door, and behind a locked one
by fetching the key first. It carries obstacles aside. Where no macro helps it makes one move along the route.
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
    GridObject,
    Pose,
    apply_move,
)
from evolvent.worlds.grid.mission import GO, OPEN_DOOR, PICK, Atom, Progress
from evolvent.worlds.grid.plan import BESIDE, FACE, MOVES, STAND, Macro, shortest_path
from evolvent.worlds.grid.scene import Scene, apply_action, build_turn
from evolvent.worlds.grid.view import map_cell

__all__ = ["solve"]

_NAMES = {move: name for name, move in MOVES.items()}
_Verb = tuple[int, tuple[int, ...]]
_FACE_IT, _STAND_ON_IT, _PICK_UP = (FACE, ()), (STAND, ()), (FACE, (PICKUP,))
_GO_THROUGH, _DROP_BESIDE = (FACE, (TOGGLE, FORWARD)), (BESIDE, (DROP,))
_OBJECT_COST, _LOCKED_DOOR_COST = 30, 40  # what a thing or a locked door in the way costs, in steps
_MAX_DEPTH = 12  # errands within errands
_NO_CELLS: frozenset[int] = frozenset()


def solve(
    scene: Scene, pose: Pose | None = None, progress: Progress | None = None, *, max_actions: int
) -> list[str] | None:
    """Returns actions that fulfill the mission from the start or a later moment; None if `max_actions` do not
    suffice.
    """
    expert = _Expert(scene, pose or scene.board.start, progress or Progress(), max_actions)
    try:
        expert.run()
    except _Stuck:
        return None
    return expert.plan if expert.verdict else None


class _Stuck(Exception):
    """The expert has no next action, or takes too long."""


class _ProgressMade(Exception):
    """The mission has progressed: abandon the current errand and plan again."""


class _Expert:
    """Plan of the expert for one episode, made by simulating it."""

    def __init__(self, scene: Scene, pose: Pose, progress: Progress, max_actions: int) -> None:
        self.scene, self.board, self.pose, self.progress = scene, scene.board, pose, progress
        self.plan: list[str] = []
        self.most, self.depth = max_actions, 0
        self.verdict: bool | None = None

    def run(self) -> None:
        """Plays until the mission is fulfilled or has failed."""
        while self.verdict is None:
            self.depth = 0
            atoms = self.scene.mission.stages[self.progress.stage]
            try:
                self.fulfill(
                    next(atom for number, atom in enumerate(atoms) if not self.progress.done_mask >> number & 1)
                )
            except _ProgressMade:
                continue
            raise _Stuck

    def perform(self, *actions: str) -> None:
        """Executes actions; raises `_ProgressMade` after progress."""
        for action in actions:
            if len(self.plan) >= self.most:
                raise _Stuck
            progress_before = self.progress
            outcome = apply_action(self.scene, build_turn(self.scene, self.pose), action, progress=progress_before)
            self.plan.append(action)
            self.pose, self.progress, self.verdict = outcome.pose, outcome.progress, outcome.is_fulfilled
            if self.verdict is not None or self.progress != progress_before:
                raise _ProgressMade

    # --- errands ---------------------------------------------------------------------------------------------------

    def fulfill(self, atom: Atom) -> None:
        """Executes the errands that fulfill an atom."""
        if atom.verb == GO:
            self.interact(atom.codes, _STAND_ON_IT if GOAL in atom.codes else _FACE_IT)
            self.perform("turn right", "turn left")  # it was there already, which counts after the next move only
        elif atom.verb == OPEN_DOOR:
            self.open_door(atom.codes)
        elif atom.verb == PICK:
            self.fetch(atom.codes)
        else:
            if self.pose.held_code not in atom.codes:
                self.fetch(atom.codes - atom.landmark_codes or atom.codes)
            self.interact(atom.landmark_codes - {self.pose.held_code}, _DROP_BESIDE)

    def open_door(self, codes: Collection[int]) -> None:
        """Opens one of these doors; where all are open, closes one first."""
        closed_doors = [code for code in codes if self.board.get_object(code).state != OPEN and code in self.pose.cells]
        if closed_doors:
            self.interact(closed_doors, _GO_THROUGH)
        self.interact(codes, _FACE_IT)
        self.perform(_NAMES[TOGGLE], _NAMES[TOGGLE])

    def fetch(self, codes: Collection[int]) -> None:
        """Picks up one of these objects: unlocks the route to it and puts down the carried object first."""
        locked_cell: int | None = 0
        while locked_cell is not None:
            route = self.find_route(codes)
            locked_cell = self.find_obstacle(route[:-1], blocking_states=(LOCKED,))
            if locked_cell is not None:
                self.unlock(self.pose.cells[locked_cell], frozenset(route))
        self.interact(codes, _PICK_UP)

    def interact(self, codes: Collection[int], verb: _Verb) -> None:
        """Applies `verb` to one of the objects of these codes, opening and clearing the route."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Stuck
        while not self.advance(codes, verb):
            pass
        self.depth -= 1

    def advance(self, codes: Collection[int], verb: _Verb) -> bool:
        """Applies `verb` if an object is visible, else makes one step on the route; returns whether it is finished."""
        actions = self.find_actions(self.pose, codes, verb)
        if actions:
            self.perform(*actions)
            return True
        route = self.find_route(codes)
        if verb == _PICK_UP and self.pose.held_code:
            self.put_down(frozenset(route))
            return False
        if verb == _FACE_IT and [self.cell_in_front(self.pose)] == route:
            return True
        waypoint = self.find_obstacle(route[:-1])
        if waypoint is None and verb == _GO_THROUGH:
            waypoint = route[-1]
        if waypoint is not None:
            code = self.pose.cells[waypoint]
            if not self.can_open(code):
                self.remove_obstacle(code, frozenset(route))
                return self.pose.cells[waypoint] != code and waypoint == route[-1]
            codes, verb = (code,), _GO_THROUGH
            actions = self.find_actions(self.pose, codes, verb)
            if actions:
                self.perform(*actions)
                return waypoint == route[-1]
        self.look_or_step(route, codes, verb)
        return False

    def look_or_step(self, route: list[int], codes: Collection[int], verb: _Verb) -> None:
        """Turns right if that brings an object into reach; else goes through an open door, or makes one move on the
        route.
        """
        for turns in (1, 2, 3):
            if self.find_actions(self.pose._replace(direction=(self.pose.direction + turns) % 4), codes, verb):
                self.perform("turn right")
                return
        doorway = self.find_obstacle(route[:-1], blocking_states=(OPEN,))
        door_actions = (
            self.find_actions(self.pose, (self.pose.cells[doorway],), _STAND_ON_IT) if doorway is not None else ()
        )
        if door_actions:
            self.perform(*door_actions)
            return
        turns = (self.board.forward_offsets.index(route[0] - self.pose.cell) - self.pose.direction) % 4
        if turns:
            self.perform("turn left" if turns == 3 else "turn right")
        elif apply_move(self.board, self.pose, FORWARD) is not None:
            self.perform("move forward")
        else:
            self.clear_around(route[-1])

    def clear_around(self, cell: int) -> None:
        """Removes one of the objects around a cell, else the object on it, because no place beside the cell is
        reachable.
        """
        cells = [*(cell + step for step in self.direction_offsets()), cell]
        obstacle_codes = [
            code
            for code in (self.pose.cells[neighbor] for neighbor in cells)
            if self.board.objects[code] and self.board.get_object(code).type != DOOR
        ]
        if not obstacle_codes:
            raise _Stuck
        self.remove_obstacle(obstacle_codes[0], frozenset(cells))

    def remove_obstacle(self, code: int, keep_free: frozenset[int]) -> None:
        """Clears an obstacle: unlocks the door or carries the object aside; then fetches the object carried before."""
        held_before = self.pose.held_code
        door = self.board.get_object(code)
        if door.type == DOOR:
            self.unlock(code, keep_free)
        else:
            if held_before:
                self.put_down(keep_free)
            self.interact((code,), _PICK_UP)
            self.put_down(keep_free)
        if held_before and self.pose.held_code != held_before:
            self.fetch((held_before,))

    def unlock(self, code: int, keep_free: frozenset[int]) -> None:
        """Opens a locked door after fetching its key, out of its box if necessary."""
        if not self.can_open(code):
            colour = self.board.get_object(code).colour
            keys = {
                number
                for number, key in enumerate(self.board.objects)
                if key is not None and key.type == KEY and key.colour == colour
            }
            if keys.isdisjoint(self.pose.cells):
                self.interact([box for box, content in self.board.inside.items() if content in keys], _FACE_IT)
                self.perform(_NAMES[TOGGLE])
            if self.pose.held_code:
                self.put_down(keep_free)
            self.interact(keys, _PICK_UP)
        self.interact((code,), _GO_THROUGH)

    def put_down(self, keep_free: frozenset[int]) -> None:
        """Puts down the carried object at the nearest cell outside `keep_free`, preferably not beside a door."""
        for avoid_doors in (True, False):
            predecessors: dict[Pose, tuple[Pose, int]] = {self.pose: (self.pose, -1)}
            queue = [self.pose]
            for pose in queue:
                if self.can_drop(pose, keep_free, avoid_doors=avoid_doors):
                    self.perform(*(_NAMES[move] for move in _moves_to(predecessors, pose)), _NAMES[DROP])
                    return
                for move in (FORWARD, RIGHT, LEFT):
                    next_pose = apply_move(self.board, pose, move)
                    if next_pose is not None and next_pose not in predecessors:
                        predecessors[next_pose] = (pose, move)
                        queue.append(next_pose)
        raise _Stuck

    # --- what it knows ---------------------------------------------------------------------------------------------

    def direction_offsets(self) -> list[int]:
        """Returns the cell offsets ahead, right, back and left of the agent, so that decisions do not depend on
        rotation.
        """
        return [self.board.forward_offsets[(self.pose.direction + turns) % 4] for turns in range(4)]

    def cell_in_front(self, pose: Pose) -> int:
        return pose.cell + self.board.forward_offsets[pose.direction]

    def can_drop(self, pose: Pose, keep_free: frozenset[int], *, avoid_doors: bool) -> bool:
        """Checks whether an object may be put down in front of this pose."""
        front = self.cell_in_front(pose)
        if pose.cells[front] != FLOOR or front in keep_free:
            return False
        if not avoid_doors:
            return True
        nearby_cells = [pose.cell, *(front + step for step in self.board.forward_offsets)]
        return all(
            self.board.objects[pose.cells[nearby_cell]] is None
            or self.board.get_object(pose.cells[nearby_cell]).type != DOOR
            for nearby_cell in nearby_cells
        )

    def find_actions(self, pose: Pose, codes: Collection[int], verb: _Verb) -> tuple[str, ...]:
        """Returns the actions that perform `verb` on the nearest matching object in view; empty if that is
        impossible.
        """
        turn = build_turn(self.scene, pose)
        for visible_object in turn.sight.objects:
            if pose.cells[map_cell(self.board, pose, visible_object.view_cell)] in codes:
                target_macro = Macro(verb[0], visible_object.view_cell, verb[1])
                name = next((name for name, macro in turn.actions.items() if macro == target_macro), None)
                if name is not None:
                    return (name,)
                walk = (
                    shortest_path(BESIDE, visible_object.view_cell, turn.sight.walkable, floor=turn.sight.floor)
                    if verb == _DROP_BESIDE
                    else None
                )
                if walk is not None and not self.scene.short_text:
                    return tuple(_NAMES[move] for move in (*walk, DROP))
        return ()

    def can_open(self, code: int) -> bool:
        """Checks whether a code is a door that can be opened with the carried object."""
        door, held_object = self.board.get_object(code), self.board.objects[self.pose.held_code]
        return door.type == DOOR and (door.state != LOCKED or (held_object is not None and _fits(held_object, door)))

    def find_obstacle(self, route: list[int], *, blocking_states: Collection[str] = (CLOSED, LOCKED, "")) -> int | None:
        """Returns the first cell of a route with an object in one of these states: a door to open, or an obstacle."""
        for cell in route:
            grid_object = self.board.objects[self.pose.cells[cell]]
            if grid_object is not None and grid_object.state in blocking_states:
                return cell
        return None

    def find_route(self, codes: Collection[int]) -> list[int]:
        """Returns the cells of the cheapest route to one of the objects, that of the object last.

        Puts down the carried object first if it is the target, and leaves a doorway that is the target itself.
        """
        if self.pose.held_code in codes and self.pose.held_code:
            self.put_down(_NO_CELLS)
        start, cells = self.pose.cell, self.pose.cells
        costs, predecessors = {start: 0}, {start: start}
        queue, order = [(0, 0, start)], count(1)
        while queue:
            cost, _, cell = heappop(queue)
            if cell != start and cells[cell] in codes:
                return list(_backtrack(predecessors, cell))[::-1]
            for step in self.direction_offsets():
                neighbor, price = cell + step, self.cell_cost(cell + step, codes)
                if price and (neighbor not in costs or cost + price < costs[neighbor]):
                    costs[neighbor], predecessors[neighbor] = cost + price, cell
                    heappush(queue, (cost + price, next(order), neighbor))
        if cells[start] not in codes:
            raise _Stuck
        self.perform("turn right" if apply_move(self.board, self.pose, FORWARD) is None else "move forward")
        return self.find_route(codes)

    def cell_cost(self, cell: int, codes: Collection[int]) -> int:
        """Returns the cost of a cell on a route; 0: not walkable."""
        code = self.pose.cells[cell]
        if code == WALL:
            return 0
        grid_object = self.board.objects[code]
        if code in codes or grid_object is None or grid_object.state == OPEN:
            return 1
        if grid_object.type == DOOR:
            return 2 if self.can_open(code) else _LOCKED_DOOR_COST
        return _OBJECT_COST


def _fits(key: GridObject, door: GridObject) -> bool:
    return key.type == KEY and key.colour == door.colour


def _backtrack(predecessors: dict[int, int], cell: int) -> Iterator[int]:
    while predecessors[cell] != cell:
        yield cell
        cell = predecessors[cell]


def _moves_to(predecessors: dict[Pose, tuple[Pose, int]], pose: Pose) -> list[int]:
    moves = []
    while predecessors[pose][1] >= 0:
        pose, move = predecessors[pose]
        moves.append(move)
    return moves[::-1]
