"""TextArena itself: games for one player, won by programs."""

from __future__ import annotations

import random
import re
import threading
from collections import deque

import numpy as np
import pytest

from evolvent.errors import ConfigError, EnvLost, SessionGone
from evolvent.trajectory import Task
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.extras.textarena import SOLO, TextArena
from evolvent.worlds.panel import Sizes

pytest.importorskip("textarena")
pytestmark = pytest.mark.filterwarnings("ignore")

TEXTS = ("1", "[1]", "[up]", "[A B]", "[0 0]", "hello", "[[", "[hit]", "[1 2 3 4]", "", "\x00", "\ud800", "x" * 9000)


@pytest.fixture(scope="module")
def world():
    return TextArena()


def task_of(world, game, seed=0):
    return Task("textarena", world.version, {"game": game, "seed": seed}, game)


@pytest.mark.parametrize("game", SOLO)
def test_every_game_answers_any_text_and_repeats_itself(world, game, capsys):
    def choose(rng, info):
        return rng.choice([*info.get("admissible", ()), *TEXTS])

    assert check_env(lambda: world.make(task_of(world, game)), choose=choose, forkable=True, walks=2, steps=6) == []
    assert capsys.readouterr().out == ""


def test_numbers_are_found_by_halving(world):
    env = world.make(task_of(world, "GuessTheNumber-v0", 4))
    text, info = env.reset()
    low, high = map(int, re.search(r"between (\d+) and (\d+)", text).groups())
    rewards, terminated = [], False
    while not terminated:
        guess = (low + high) // 2
        text, reward, terminated, _, info = env.step(str(guess))
        rewards.append(reward)
        low, high = (guess + 1, high) if "higher" in text else (low, guess - 1)
    score = world.score(rewards, info)
    assert (rewards[-1], score.success, score.unit) == (1.0, True, 1.0)
    with pytest.raises(SessionGone):
        env.step("1")


def test_a_lake_is_crossed_by_the_listed_actions(world):
    env = world.make(task_of(world, "FrozenLake-v0", 11))
    text, info = env.reset()
    assert set(info["admissible"]) >= {"[up]", "[down]", "[left]", "[right]"}
    grid = [re.findall(r"\|  (.)  (?=\|)", line) for line in text.split("\n") if line.startswith("|")]
    rewards = []
    for action in way(grid):
        _, reward, terminated, _, info = env.step(action)
        rewards.append(reward)
    assert terminated and world.score(rewards, info).success


def way(grid):
    """A shortest way from P to G around the holes."""
    sides = {"[up]": (-1, 0), "[down]": (1, 0), "[left]": (0, -1), "[right]": (0, 1)}
    cells = {(y, x): cell for y, row in enumerate(grid) for x, cell in enumerate(row)}
    start = next(at for at, cell in cells.items() if cell == "P")
    ways = {start: []}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        if cells[at] == "G":
            return ways[at]
        for name, (down, right) in sides.items():
            then = (at[0] + down, at[1] + right)
            if cells.get(then, "H") != "H" and then not in ways:
                ways[then] = [*ways[at], name]
                queue.append(then)
    raise AssertionError("no way over this lake")


def test_mistakes_are_marked_and_the_second_in_a_row_loses(world):
    env = world.make(task_of(world, "FrozenLake-v0"))
    env.reset()
    first, second = env.step("dance"), env.step("dance")
    assert first[4]["invalid"] and not first[2]
    assert second[4]["invalid"] and second[2] and "Invalid Move" in second[0]


def play(world, game, actions, seed=0):
    """Plays actions and returns the last reply with the score."""
    env = world.make(task_of(world, game, seed))
    env.reset()
    rewards, reply = [], None
    for action in actions:
        reply = env.step(action)
        rewards.append(reply[1])
        if reply[2]:
            break
    return reply, world.score(rewards, reply[4]), env


def test_bandit_pays_one_less_the_regret(world):
    """Seed 3: the chances are .550 for blue, .421 for yellow and .146 for green; 1 - (.550 - .421) = .871."""
    earned = {}
    for button in ("blue", "yellow", "green"):
        reply, score, env = play(world, "Bandit-v0", [f"[{button}]"] * 21, seed=3)
        chances = env._session._env.state.game_state["ground_truth"] if env._session._env else None
        assert reply[2] and (score.success, score.unit) == (button == "blue", reply[1]), chances
        earned[button] = round(reply[1], 3)
    assert earned == {"blue": 1.0, "yellow": 0.871, "green": 0.596}
    assert play(world, "Bandit-v0", ["banana"] * 2, seed=3)[0][1] == -1.0


def test_set_pays_the_share_of_its_turns(world):
    """One set in 20 turns is a twentieth; the same card three times is no set."""
    env = world.make(task_of(world, "Set-v0"))
    env.reset()
    board = env._session._env.state.game_state["board"]
    sets = [
        (a, b, c)
        for a in range(12)
        for b in range(a)
        for c in range(b)
        if all(len({board[a][trait], board[b][trait], board[c][trait]}) != 2 for trait in range(4))
    ]
    no_set = next(
        (a, b, c)
        for a in range(12)
        for b in range(a)
        for c in range(b)
        if (a, b, c) not in sets and board[a][0] != board[b][0]
    )
    env.close()

    def text(cards):
        return f"[{', '.join(str(card + 1) for card in cards)}]"

    reply, score, _ = play(world, "Set-v0", ["[1, 1, 1]"] * 2)
    assert reply[4]["invalid"] and reply[2] and (score.unit, score.success) == (0.0, False)
    bad = [text(no_set)] * 20
    reply, score, _ = play(world, "Set-v0", bad)
    assert reply[2] and (reply[1], score.unit, score.success) == (0.0, 0.0, False)
    reply, score, _ = play(world, "Set-v0", [*bad[:19], text(sets[0])])
    assert reply[2] and (reply[1], score.unit, score.success) == (0.05, 0.05, False)


@pytest.mark.parametrize(
    ("game", "actions", "reason", "paid"),
    [
        # 1 less the distance of the nearest number, 100, to the target of 532, in thousandths.
        ("Countdown-v0", ["banana"], "Invalid action format", 0.568),
        # 9567 + 1085 = 10652: S is 9 and E is 5, two of eight letters. D is not 8.
        ("Cryptarithm-v0", ["[S 9]", "[E 5]", "[D 8]", "banana"], "Bad action format", 0.25),
        ("ThreeCardMonte-v0", ["banana"], "Bad action", 0.0),
    ],
)
def test_rewards_and_reasons_are_not_swapped(world, game, actions, reason, paid):
    warning, _, env = play(world, game, actions)
    assert not warning[2] and reason in warning[0]
    env.close()
    reply, score, _ = play(world, game, [*actions, "banana"])
    assert reply[2] and reply[4]["invalid"] and reason in reply[0]
    assert reply[1] == pytest.approx(paid) and score.unit == pytest.approx(paid) and not score.success


def test_slitherlink_pays_for_clues_and_the_loop(world):
    """A board pays the share of its clues, and clues / (clues + 1) where all are met and the loop is missing."""
    env = world.make(task_of(world, "Slitherlink-v0", 4))
    env.reset()
    game = env._session._env
    clues = sum(clue is not None for row in game.clues for clue in row)
    met = round(game._progress() * clues)
    env.step("banana")
    assert env.step("banana")[1] == pytest.approx(met / clues)
    env.reset()
    env._session._env.clues = [[0] * 4 for _ in range(4)]
    env.step("banana")
    reply = env.step("banana")
    assert reply[1] == pytest.approx(16 / 17) and not world.score([reply[1]], reply[4]).success


def test_a_solved_fifteen_puzzle_is_won():
    """The package calls a method that its state does not have; by name, the game can be won all the same."""
    world = TextArena("FifteenPuzzle-v0")
    env = world.make(task_of(world, "FifteenPuzzle-v0"))
    env.reset()
    game = env._session._env
    game.board[:] = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, None, 15]]
    reply = env.step("[left]")
    assert reply[2] and reply[1] == 1.0 and world.score([reply[1]], reply[4]).success


def test_the_programs_own_chance_is_left_alone(world):
    random.seed(5)
    np.random.seed(5)
    wanted = (random.random(), float(np.random.rand()))
    random.seed(5)
    np.random.seed(5)
    env = world.make(task_of(world, "Sokoban-v0"))
    env.reset()
    env.step("[up]")
    assert (random.random(), float(np.random.rand())) == wanted


def test_episodes_on_threads_are_those_played_alone(world):
    def play(seed):
        env = world.make(task_of(world, "Blackjack-v0", seed))
        seen = [env.reset()[0]]
        for _ in range(6):
            reply = env.step("[hit]")
            seen.append(reply[:4])
            if reply[2]:
                break
        return seen

    alone = [play(seed) for seed in range(6)]
    together = {}
    threads = [threading.Thread(target=lambda seed=seed: together.update({seed: play(seed)})) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[seed] for seed in range(6)] == alone


@pytest.mark.parametrize(
    ("game", "error", "words"),
    [
        ("Wordle-v0", ConfigError, "downloads=True"),
        ("TwentyQuestions-v0", ConfigError, "downloads=True"),
        ("Chess-v0", ConfigError, "several players"),
        ("FrozenLake-v1", ConfigError, "did you mean 'FrozenLake-v0'"),
    ],
)
def test_games_that_cannot_be_played_say_why(game, error, words):
    world = TextArena(game)
    with pytest.raises(error, match=words):
        world.make(task_of(world, game)).reset()


def test_a_game_that_the_package_cannot_load_is_a_lost_env(world, monkeypatch):
    import textarena

    monkeypatch.setattr(textarena, "make", lambda name: (_ for _ in ()).throw(SyntaxError("broken")))
    with pytest.raises(EnvLost, match="cannot load the game Set-v0"):
        world.make(task_of(world, "Set-v0")).reset()


def test_panels_hold_every_game(world):
    sizes = [len(world.tasks(split, "seen")) for split in SPLITS]
    assert sizes == [1200, 100, 200]
    assert {task.kind for task in world.tasks("test", "seen")} == set(SOLO)
    one = TextArena("Sudoku-v0-easy", sizes=Sizes(30, 20, 20))
    assert [len(one.tasks(split, "seen")) for split in SPLITS] == [30, 20, 20]
