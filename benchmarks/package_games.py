"""Programs that play TextArena's games for one player, as well and as badly as the rules allow.

A player is a generator of actions over a `Table`, which shows the package's own game and can try actions on another
one. `BEST` and `WORST` hold a player for every game of `evolvent.worlds.extras.textarena.SOLO`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import combinations, permutations, product
from typing import Any, TypeAlias

from evolvent.trajectory import Task
from evolvent.worlds.extras.textarena import TextArena

__all__ = ["BEST", "WORST", "Table", "find_actions"]

Cell: TypeAlias = tuple[int, int]
_STEPS: Mapping[str, Cell] = {"[up]": (-1, 0), "[down]": (1, 0), "[left]": (0, -1), "[right]": (0, 1)}


class Table:
    """A game of the package, with its hidden state.

    Args:
        world: the world that makes the game.
        task: its task.
    """

    def __init__(self, world: TextArena, task: Task) -> None:
        self._world, self._task = world, task
        self.env = world.make(task)
        self.actions: list[str] = []

    @property
    def game(self) -> Any:
        """Returns the package's game."""
        return self.env._session._env  # type: ignore[attr-defined]

    @property
    def hidden(self) -> Mapping[str, Any]:
        """Returns the state that the game keeps."""
        state: Mapping[str, Any] = self.game.state.game_state
        return state

    def try_actions(self, actions: Sequence[str]) -> Any:
        """Returns another game of the task after these actions."""
        other = Table(self._world, self._task)
        other.env.reset()
        for action in actions:
            if other.env.step(action)[2]:
                break
        return other.game


Player: TypeAlias = Callable[[Table], Iterator[str]]


def find_actions(
    start: Hashable, is_goal: Callable[[Any], bool], moves: Callable[[Any], Iterator[tuple[str, Any]]]
) -> list[str]:
    """Finds the shortest actions from a state to a goal."""
    origins: dict[Hashable, tuple[str, Any]] = {start: ("", None)}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if is_goal(state):
            actions = []
            while origins[state][1] is not None:
                action, state = origins[state]
                actions.append(action)
            return actions[::-1]
        for action, following in moves(state):
            if following not in origins:
                origins[following] = (action, state)
                queue.append(following)
    raise LookupError("the game has no way to its goal")


def _repeat(action: str) -> Player:
    """Returns a player that knows one action."""

    def play(table: Table) -> Iterator[str]:
        while True:
            yield action

    return play


def _slide(row: Sequence[int]) -> list[int]:
    tiles, merged = [tile for tile in row if tile], []
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tile += tiles.pop(0)
        merged.append(tile)
    return merged + [0] * (len(row) - len(merged))


def _move_tiles(board: Sequence[Sequence[int]], action: str) -> list[list[int]]:
    columns = action in ("[up]", "[down]")
    rows = [list(row) for row in (zip(*board, strict=True) if columns else board)]
    backwards = action in ("[down]", "[right]")
    moved = [_slide(row[::-1])[::-1] if backwards else _slide(row) for row in rows]
    return [list(row) for row in zip(*moved, strict=True)] if columns else moved


def _value_tiles(board: Sequence[Sequence[int]], depth: int) -> float:
    followers = [moved for action in _STEPS if (moved := _move_tiles(board, action)) != board]
    if depth and followers:
        return max(_value_tiles(moved, depth - 1) for moved in followers)
    tiles = [tile for row in board for tile in row]
    return tiles.count(0) + sum(tile**2 for tile in tiles) / 10 - (0 if followers else 100)


def _play_2048(table: Table) -> Iterator[str]:
    while True:
        board = [list(row) for row in table.hidden["board"]]
        moves = [action for action in _STEPS if _move_tiles(board, action) != board]
        yield max(moves, key=lambda action: _value_tiles(_move_tiles(board, action), 2))


def _play_bandit(choose: Callable[..., str]) -> Player:
    def play(table: Table) -> Iterator[str]:
        chances = table.hidden["ground_truth"]
        while True:
            yield f"[{choose(chances, key=chances.get)}]"

    return play


def _play_blackjack(table: Table) -> Iterator[str]:
    """Tries numbers of cards, hand by hand, and keeps the three plans that win most."""
    plans: list[tuple[int, list[str]]] = [(0, [])]
    for hands in range(1, table.hidden["num_hands"] + 1):
        options = []
        for _, plan in plans:
            for hits in range(5):
                for actions in ([*plan, *["[hit]"] * hits, "[stand]"], [*plan, *["[hit]"] * (hits + 1)]):
                    results = table.try_actions(actions).state.game_state["results_summary"]
                    if sum(results.values()) == hands:
                        options.append((int(results["win"]), actions))
        plans = sorted(options, key=lambda option: -option[0])[:3]
    yield from plans[0][1]


def _play_countdown(table: Table) -> Iterator[str]:
    game = table.game

    def combine(numbers: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
        for (i, a), (j, b) in permutations(enumerate(numbers), 2):
            rest = tuple(number for index, number in enumerate(numbers) if index not in (i, j))
            for sign, value in (("+", a + b), ("-", a - b), ("*", a * b)):
                if 0 < value <= 1000:
                    yield f"[{i} {j} {sign}]", (*rest, value)
            if b and a % b == 0:
                yield f"[{i} {j} /]", (*rest, a // b)

    yield from find_actions(tuple(game.numbers), lambda numbers: numbers[-1] == game.target, combine)


def _play_countdown_badly(table: Table) -> Iterator[str]:
    while True:
        numbers = table.game.numbers
        i, j = sorted(range(len(numbers)), key=numbers.__getitem__)[:2]
        yield f"[{i} {j} -]"


def _play_cryptarithm(table: Table) -> Iterator[str]:
    from evolvent.worlds.extras.textarena import _solve_cryptarithm

    for letter, digit in _solve_cryptarithm(table.game.equation_raw)[0].items():
        yield f"[{letter} {digit}]"


def _play_cryptarithm_badly(table: Table) -> Iterator[str]:
    for digit, letter in enumerate(sorted(table.game.letters), start=1):
        yield f"[{letter} {digit}]"


def _cross_lake(goal: str) -> Player:
    def play(table: Table) -> Iterator[str]:
        grid = table.hidden["grid"]

        def walk(cell: Cell) -> Iterator[tuple[str, Cell]]:
            if grid[cell[0]][cell[1]] == "H":
                return
            for action, (down, right) in _STEPS.items():
                row, column = cell[0] + down, cell[1] + right
                if 0 <= row < len(grid) and 0 <= column < len(grid):
                    yield action, (row, column)

        yield from find_actions(table.hidden["player_pos"], lambda cell: grid[cell[0]][cell[1]] == goal, walk)

    return play


def _play_number(table: Table) -> Iterator[str]:
    yield f"[{table.game.game_number}]"


def _play_number_badly(table: Table) -> Iterator[str]:
    game = table.game
    numbers = range(game.min_number, game.max_number + 1)
    for number in sorted(numbers, key=lambda number: -abs(number - game.game_number)):
        yield f"[{number}]"


def _play_lights(table: Table) -> Iterator[str]:
    """Tries the presses of the first row; those of every other row follow from the row above."""
    size, plans = table.game.size, []
    for first_row in product((False, True), repeat=size):
        grid = [list(row) for row in table.hidden["grid"]]
        presses = []
        for row, column in product(range(size), repeat=2):
            if first_row[column] if row == 0 else grid[row - 1][column]:
                presses.append(f"[{row} {column}]")
                table.game._toggle_lights(grid, row, column)
        if not any(map(any, grid)):
            plans.append(presses)
    yield from min(plans, key=len)


def _fill_logic(*, right: bool) -> Player:
    def play(table: Table) -> Iterator[str]:
        for grid in table.game.game_board_solution.values():
            for row, marks in grid.items():
                for column, mark in marks.items():
                    yield f"[{row} {column} {mark if right else 'X' if mark == 'O' else 'O'}]"
        yield from [f"[{row} {column} {'X' if mark == 'O' else 'O'}]"] * 2  # a mark that is there already

    return play


def _play_mastermind(table: Table) -> Iterator[str]:
    yield f"[{' '.join(map(str, table.hidden['secret_code']))}]"


def _play_mastermind_badly(table: Table) -> Iterator[str]:
    code = table.hidden["secret_code"]
    guesses = permutations(range(1, table.hidden["num_numbers"] + 1), len(code))
    for guess in sorted(guesses, key=lambda guess: sum(map(int.__eq__, guess, code))):
        yield f"[{' '.join(map(str, guess))}]"


def _sweep(*, mines: bool) -> Player:
    def play(table: Table) -> Iterator[str]:
        game = table.game
        yield f"[{game.rows // 2} {game.cols // 2}]"
        cells = sorted(product(range(game.rows), range(game.cols)), key=lambda cell: game.grid[cell[0]][cell[1]])
        for row, column in cells:
            if (game.grid[row][column] == -1) == mines and not game.revealed[row][column]:
                yield f"[{row} {column}]"

    return play


def _jump_pegs(*, well: bool) -> Player:
    def play(table: Table) -> Iterator[str]:
        game = table.game

        def jump(board: tuple[bool, ...]) -> Iterator[tuple[str, Any]]:
            for start, over, end in game.ALLOWED_MOVES:
                if board[start] and board[over] and not board[end]:
                    following = list(board)
                    following[start], following[over], following[end] = False, False, True
                    yield f"[{start} {end}]", tuple(following)

        def is_end(board: tuple[bool, ...]) -> bool:
            return sum(board) == 1 if well else next(jump(board), None) is None

        yield from find_actions(tuple(table.hidden["board"]), is_end, jump)

    return play


def _play_rush_hour(table: Table) -> Iterator[str]:
    game = table.game
    cars = list(table.hidden["vehicles"].values())
    size = game.BOARD_SIZE
    # The first cell and the stride of the row or column in which a car moves, and its length.
    lanes = [
        (car.vid, car.row * size if car.horizontal else car.col, 1 if car.horizontal else size, car.length)
        for car in cars
    ]

    def drive(places: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
        taken = bytearray(size * size)
        for place, (_, first, stride, length) in zip(places, lanes, strict=True):
            for offset in range(place, place + length):
                taken[first + stride * offset] = 1
        for index, (place, (name, first, stride, length)) in enumerate(zip(places, lanes, strict=True)):
            if place + length < size and not taken[first + stride * (place + length)]:
                yield f"[{name}+]", (*places[:index], place + 1, *places[index + 1 :])
            if place and not taken[first + stride * (place - 1)]:
                yield f"[{name}-]", (*places[:index], place - 1, *places[index + 1 :])

    red = next(index for index, car in enumerate(cars) if car.vid == "X")
    start = tuple(car.col if car.horizontal else car.row for car in cars)
    yield from find_actions(start, lambda places: places[red] == size - cars[red].length, drive)


def _take_secretary(choose: Callable[[Sequence[float]], float]) -> Player:
    def play(table: Table) -> Iterator[str]:
        draws = table.hidden["draws"]
        yield from ["[continue]"] * draws.index(choose(draws))
        yield "[accept]"

    return play


def _list_cards(board: Sequence[Sequence[str]], *, is_set: bool) -> Iterator[str]:
    for indices in combinations(range(len(board)), 3):
        if all(len({board[index][trait] for index in indices}) != 2 for trait in range(4)) == is_set:
            yield f"[{', '.join(str(index + 1) for index in indices)}]"


def _play_set(table: Table) -> Iterator[str]:
    """Takes sets; where there is none, the game deals three cards before it looks at the action."""
    while True:
        board, deck = table.hidden["board"], table.hidden["deck"]
        dealt = [*board, *deck[:-4:-1]]
        # The first invalid action costs no turn, and the next one deals again.
        yield next(_list_cards(board, is_set=True), None) or next(_list_cards(dealt, is_set=True), "[no set]")


def _play_set_badly(table: Table) -> Iterator[str]:
    while True:
        yield next(_list_cards(table.hidden["board"], is_set=False))


def _play_slitherlink(table: Table) -> Iterator[str]:
    """Draws the rectangle whose borders fit the clues."""
    game = table.game
    for top, left in product(range(game.R), range(game.C)):
        for bottom, right in product(range(top + 1, game.R + 1), range(left + 1, game.C + 1)):
            flat = {(row, column) for row in (top, bottom) for column in range(left, right)}
            upright = {(row, column) for column in (left, right) for row in range(top, bottom)}
            if all(
                clue is None
                or clue
                == ((row, column) in flat)
                + ((row + 1, column) in flat)
                + ((row, column) in upright)
                + ((row, column + 1) in upright)
                for row, clues in enumerate(game.clues)
                for column, clue in enumerate(clues)
            ):
                yield from (f"[h {row} {column}]" for row, column in sorted(flat))
                yield from (f"[v {row} {column}]" for row, column in sorted(upright))
                return


def _play_slitherlink_badly(table: Table) -> Iterator[str]:
    """Spoils the clues of 0, then draws beyond the board."""
    game = table.game
    for row, clues in enumerate(game.clues):
        for column, clue in enumerate(clues):
            if clue == 0 and not game._cell_edge_count(row, column):
                yield f"[h {row} {column}]"
    yield from ["[h 99 99]"] * 2


def _play_sokoban(table: Table) -> Iterator[str]:
    room, floor = table.game.room_state, table.game.room_fixed
    cells = list(product(range(room.shape[0]), range(room.shape[1])))
    boxes = frozenset(cell for cell in cells if room[cell] in (3, 4))
    targets = {cell for cell in cells if floor[cell] == 2}
    player = next(cell for cell in cells if room[cell] == 5)

    def walk(state: tuple[Cell, frozenset[Cell]]) -> Iterator[tuple[str, Any]]:
        (row, column), crates = state
        for action, (down, right) in _STEPS.items():
            cell, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
            if floor[cell] == 0 or (cell in crates and (floor[beyond] == 0 or beyond in crates)):
                continue
            yield action, (cell, crates - {cell} | {beyond} if cell in crates else crates)

    yield from find_actions((player, boxes), lambda state: state[1] <= targets, walk)


def _fill_sudoku(*, right: bool) -> Player:
    def play(table: Table) -> Iterator[str]:
        for row, column in product(range(9), repeat=2):
            if table.hidden["board"][row][column] == 0:
                number = table.game.full_grid[row][column]
                yield f"[{row + 1} {column + 1} {number if right else number % 9 + 1}]"

    return play


def _play_monte(table: Table) -> Iterator[str]:
    yield f"[{table.game.ball_pos}]"


def _play_monte_badly(table: Table) -> Iterator[str]:
    yield f"[{(table.game.ball_pos + 1) % table.game.num_cups}]"


def _play_hanoi(table: Table) -> Iterator[str]:
    def move(count: int, start: str, end: str, other: str) -> Iterator[str]:
        if count:
            yield from move(count - 1, start, other, end)
            yield f"[{start} {end}]"
            yield from move(count - 1, other, end, start)

    yield from move(table.game.num_disks, "A", "C", "B")


def _play_hanoi_badly(table: Table) -> Iterator[str]:
    while True:
        yield from ("[A B]", "[B A]")


BEST: Mapping[str, Player] = {
    "2048-v0-mega-easy": _play_2048,
    "Bandit-v0": _play_bandit(max),
    "Blackjack-v0": _play_blackjack,
    "Countdown-v0": _play_countdown,
    "Cryptarithm-v0": _play_cryptarithm,
    "FrozenLake-v0": _cross_lake("G"),
    "GuessTheNumber-v0": _play_number,
    "LightsOut-v0": _play_lights,
    "LogicPuzzle-v0": _fill_logic(right=True),
    "Mastermind-v0": _play_mastermind,
    "Minesweeper-v0": _sweep(mines=False),
    "PegJump-v0": _jump_pegs(well=True),
    "RushHour-v0": _play_rush_hour,
    "Secretary-v0": _take_secretary(max),
    "Set-v0": _play_set,
    "Slitherlink-v0": _play_slitherlink,
    "Sokoban-v0": _play_sokoban,
    "Sudoku-v0": _fill_sudoku(right=True),
    "ThreeCardMonte-v0": _play_monte,
    "TowerOfHanoi-v0": _play_hanoi,
}
"""Players that win, wherever chance lets them."""

WORST: Mapping[str, Player] = {
    "2048-v0-mega-easy": _repeat("[up]"),
    "Bandit-v0": _play_bandit(min),
    "Blackjack-v0": _repeat("[hit]"),
    "Countdown-v0": _play_countdown_badly,
    "Cryptarithm-v0": _play_cryptarithm_badly,
    "FrozenLake-v0": _cross_lake("H"),
    "GuessTheNumber-v0": _play_number_badly,
    "LightsOut-v0": _repeat("[0 0]"),
    "LogicPuzzle-v0": _fill_logic(right=False),
    "Mastermind-v0": _play_mastermind_badly,
    "Minesweeper-v0": _sweep(mines=True),
    "PegJump-v0": _jump_pegs(well=False),
    "RushHour-v0": _repeat("[X-]"),
    "Secretary-v0": _take_secretary(min),
    "Set-v0": _play_set_badly,
    "Slitherlink-v0": _play_slitherlink_badly,
    "Sokoban-v0": _repeat("[up]"),
    "Sudoku-v0": _fill_sudoku(right=False),
    "ThreeCardMonte-v0": _play_monte_badly,
    "TowerOfHanoi-v0": _play_hanoi_badly,
}
"""Players that lose by the rules, or at least play against their goal."""
