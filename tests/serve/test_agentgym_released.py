"""AgentGym's released tasks in this process: against the originals' rules, our own mounts, and game files."""

from __future__ import annotations

import json
import random
import sqlite3

import pytest

from evolvent.agents.plain import Expert, Script
from evolvent.errors import ConfigError
from evolvent.rollout.episode import collect
from evolvent.serve.agentgym.client import AgentGymWorld
from evolvent.serve.agentgym.released import ReleasedWorld, name_worlds, open_numbered_world, open_released_world
from evolvent.trajectory import Start
from evolvent.worlds.check import check_env
from evolvent.worlds.household.game import Goal
from evolvent.worlds.household.games import OfficialTexts, write_game
from evolvent.worlds.household.rooms import draw_layout
from tests.serve.agentgym_support import serving

WORDS = ("crane", "slate", "adieu", "stare", "eerie", "house", "mouse", "pound", "light", "night", "might", "sight")
# LMRL-Gym's double-T maze, written down by hand: # is a wall.
DOUBLE_T = (
    "#############",
    "#.....#.....#",
    "###.#####.###",
    "###.#####.###",
    "###.#####.###",
    "###.......###",
    "######.######",
    "######.######",
    "######.######",
    "#############",
)
OFFSETS = {"move left": (0, -1), "move right": (0, 1), "move up": (-1, 0), "move down": (1, 0)}
STARTS = [(1, col) for col in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11)]
STARTS += [(2, 3), (3, 3), (4, 3), (5, 3), (5, 4), (5, 5), (5, 6), (6, 6), (7, 6)]
STARTS += [(5, 7), (5, 8), (5, 9), (4, 9), (3, 9), (2, 9)]


def write_rows(path, item_ids):
    path.write_text(json.dumps([{"item_id": item_id} for item_id in item_ids]))
    return path


def task_of(world, index):
    return next(t for split in ("train", "dev", "test") for t in world.tasks(split, "seen") if t.spec["index"] == index)


class MazeByTheRules:
    """LMRL-Gym's MazeEnv as AgentGym sets it up, over the map above."""

    def __init__(self, start):
        self.row, self.col = start
        self.steps = 0

    def describe(self):
        sides = (("to your right", 0, 1), ("to your left", 0, -1), ("above you", -1, 0), ("below you", 1, 0))
        walls = [name for name, down, right in sides if DOUBLE_T[self.row + down][self.col + right] == "#"]
        some = {0: "There are no walls near you.", 1: f"There is a wall {walls[0] if walls else ''}."}
        told = some.get(len(walls), f"There are walls {', '.join(walls)}.")
        return f"The goal is at position 8, 6. Your current position is at position {self.row}, {self.col}. {told}"

    def step(self, action):
        if self.steps >= 50:
            return "Failure\n", -1.0, True
        down, right = OFFSETS.get(action, (0, 0))
        if DOUBLE_T[self.row + down][self.col + right] == ".":
            self.row, self.col = self.row + down, self.col + right
        if (self.row, self.col) == (8, 6):
            return "Success\n", 1.0, True
        self.steps += 1
        return self.describe(), 0.0, False


def test_the_maze_is_played_by_the_originals_rules():
    world = open_numbered_world("maze", "", range(25))
    rng = random.Random(3)
    ends = set()
    for index, start in enumerate(STARTS):
        env, rules = world.make(task_of(world, index)), MazeByTheRules(start)
        assert env.reset()[0] == rules.describe()
        over = False
        while not over:
            action = rng.choice([*OFFSETS, "move", "go left", "Move up", "left"])
            text, reward, over, truncated, _ = env.step(action)
            assert (text, reward, over, truncated) == (*rules.step("move left" if action == "left" else action), False)
        ends.add(text)
    assert ends == {"Success\n", "Failure\n"}


class WordleByTheRules:
    """LMRL-Gym's WordleGame: what is known of every letter decides which words may be drawn; AgentGym's rewards."""

    def __init__(self, words, seed):
        self.words, self.rng = list(words), random.Random(seed)
        self.here = {}  # position -> letter
        self.elsewhere = set()  # (letter, position)
        self.absent = set()
        self.guesses = []

    def fits(self, word):
        present = {letter for letter, _ in self.elsewhere} | set(self.here.values())
        return (
            all(word[position] == letter for position, letter in self.here.items())
            and all(word[position] != letter for letter, position in self.elsewhere)
            and present <= set(word)
            and not self.absent & set(word)
        )

    def step(self, action):
        guess = action.strip().replace(" ", "")
        self.guesses.append(guess)
        if guess not in self.words:
            return "invalid word", 0.0, len(self.guesses) == 6
        hidden = self.rng.choice([word for word in self.words if self.fits(word)])
        marks = []
        for position, letter in enumerate(guess):
            if hidden[position] == letter:
                self.here[position] = letter
            elif letter in hidden:
                self.elsewhere.add((letter, position))
            else:
                self.absent.add(letter)
            marks.append("g" if hidden[position] == letter else "y" if letter in hidden else "b")
        rest = [word for word in self.words if self.fits(word)]
        won = len(rest) == 1 and rest[0] in self.guesses
        return " ".join(marks) + "\n", float(won), won or len(self.guesses) == 6


@pytest.mark.parametrize("words", [WORDS, (*WORDS, "crane", "night")], ids=["words", "words twice"])
def test_wordle_draws_as_the_original_does(tmp_path, words):
    """A word that a list holds twice can never be the only one left: the original never counts it as found."""
    (tmp_path / "words.txt").write_text("\n".join(("", *words, "longer", "abc", "")))
    world = open_numbered_world("wordle", str(tmp_path / "words.txt"), range(60))
    rng, won = random.Random(1), 0
    for index in range(60):
        env, rules = world.make(task_of(world, index)), WordleByTheRules(words, index)
        assert env.reset()[0] == f"Let's start Wordle!\nThe words are: {', '.join(words)}"
        over = False
        while not over:
            guess = rng.choice([" ".join(rng.choice(words)), rng.choice(words), "z z z z z", "nights"])
            text, reward, over, _, _ = env.step(guess)
            assert (text, reward, over) == rules.step(guess)
        won += reward > 0
    assert 5 < won < 55


def test_here_and_on_a_server_the_same_tasks_have_the_same_episodes(tmp_path):
    """The expert's episodes through our own AgentGym mount: equal ids, texts, actions and scores."""
    write_rows(tmp_path / "lmrlgym_maze_test.json", [f"lmrlgym_maze_{i}" for i in (0, 5, 24)])
    here = open_released_world("maze", "", tmp_path)
    assert isinstance(here, ReleasedWorld)
    plans = {task.id: here.expert(task) for task in here.tasks("test", "seen")}
    played = []
    with serving() as server:
        there = open_released_world("maze", server.mount("maze"), tmp_path)
        assert isinstance(there, AgentGymWorld)
        assert there.tasks("test", "seen") == here.tasks("test", "seen") and len(plans) == 3
        for world in (here, there):
            agent = Script(lambda world, task: plans[task.id])
            starts = [Start(task) for task in world.tasks("test", "seen")]
            played.append(sorted(collect({world.name: world}, starts, agent, engine=None), key=lambda t: t.task.id))
        there.close()
    texts = [[[(s.observation, s.action, s.reward) for s in t.steps] for t in episodes] for episodes in played]
    assert texts[0] == texts[1]
    scores = [[t.score for t in episodes] for episodes in played]
    assert scores[0] == scores[1] and all(score.success for score in scores[0])


def test_rows_of_bird_are_found_by_their_numbers(tmp_path):
    """Numbers from 9428 on are the rows of dev: the first query that answers right earns 1."""
    folder = tmp_path / "dev" / "dev_databases" / "lakes"
    folder.mkdir(parents=True)
    connection = sqlite3.connect(folder / "lakes.sqlite")
    connection.executescript("CREATE TABLE Lake (name TEXT, depth REAL); INSERT INTO Lake VALUES ('Tarn', 12.0)")
    connection.close()
    rows = [{"db_id": "lakes", "question": f"How deep is lake {n}?", "SQL": "SELECT depth FROM Lake"} for n in range(2)]
    (tmp_path / "dev" / "dev.json").write_text(json.dumps(rows))
    write_rows(tmp_path / "sqlgym_test.json", ["sqlgym_9429", "sqlgym_9430", "sqlgym_3"])
    world = open_released_world("sqlgym", str(tmp_path), tmp_path / "sqlgym_test.json")
    (task,) = world.tasks("test", "seen")
    assert [problem.where for problem in world.problems] == ["sqlgym_test.json:2", "sqlgym_test.json:3"]
    env = world.make(task)
    text, _ = env.reset()
    assert "How deep is lake 1?" in text and "Lake" in text
    assert env.step("SELECT depth FROM Lake")[1:4] == (1.0, True, False)
    env.reset()
    assert env.step("```sql\nSELECT 1\n```")[1:4] == (0.0, True, False)


GOAL = Goal("clean", "mug", "cabinet")
TEXTS = OfficialTexts("(define (domain alfred))", 'grammar :: """ { "rhs": "Your task is to: UNKNOWN GOAL." } """;')


@pytest.fixture
def games(tmp_path):
    """Two games in ALFWorld's folders, and AgentGym's lists of games that name them and one that is missing."""
    layout, wording = draw_layout(GOAL, 4, size="small")
    for split in ("train", "valid_train"):
        folder = tmp_path / "json_2.1.1" / split / "pick_clean-Mug" / "trial_1"
        write_game(folder, layout, GOAL, task=GOAL.describe(wording), texts=TEXTS)
    listed = {"train": (0, "trial_1"), "test": (2420, "trial_1")}
    for split, (index, trial) in listed.items():
        rows = [{"item_id": index, "task_type": "pick_clean-Mug", "task_id": trial}]
        rows.append({"item_id": index + 1, "task_type": "pick_clean-Mug", "task_id": "trial_2"})
        (tmp_path / f"mappings_{split}.json").write_text(json.dumps(rows))
    return tmp_path


def test_games_of_alfworld_are_found_by_agentgyms_lists(games):
    write_rows(games / "alfworld_test.json", ["alfworld_2420", "alfworld_2421"])
    write_rows(games / "alfworld_train.json", ["alfworld_0"])
    world = open_released_world("alfworld", str(games), games)
    assert [t.spec["index"] for split in ("train", "test") for t in world.tasks(split, "seen")] == [0, 2420]
    assert [problem.where for problem in world.problems] == ["alfworld_test.json:2"]
    env = world.make(task_of(world, 2420))
    text, info = env.reset()
    head, _, actions = text.partition("\nAVAILABLE ACTIONS: ")
    assert head.count("\n") == 1 and "\nYour task is to: " in head and not head.startswith("-=")
    assert actions.split(",") == info["admissible"]
    for action in world.expert(task_of(world, 2420)):
        text, reward, over, _, _ = env.step(action)
        assert not text.startswith("You arrive at loc")
    assert (reward, over) == (1.0, True)
    assert check_env(lambda: world.make(task_of(world, 0)), forkable=True, walks=2) == []


def test_experts_win_and_episodes_fork():
    world = open_numbered_world("maze", "", range(25))
    starts = [Start(task) for split in ("train", "dev", "test") for task in world.tasks(split, "seen")]
    assert [t.success for t in collect({world.name: world}, starts, Expert(), engine=None)] == [True] * 25
    assert check_env(lambda: world.make(task_of(world, 7)), forkable=True, walks=3) == []


@pytest.mark.parametrize(
    ("environment", "source", "said"),
    [
        ("textcraft", "recipes", "needs the address of AgentGym's server: its numbers follow the order in which"),
        ("babyai", "", "needs the address of AgentGym's server: the world minigrid has the same levels, but other"),
        ("weather", "", "needs the address of AgentGym's server: answers come from the server's services"),
        ("wordle", "", "needs LMRL-Gym's list of words .tweet_words.txt., or the address"),
        ("wordle", "nowhere.txt", "cannot read the list 'nowhere.txt'"),
        ("sqlgym", "nowhere", "nowhere"),
        ("alfworld", "nowhere", "nowhere"),
        ("maze", "folder", "needs no source, got 'folder'"),
        ("maz", "", "did you mean 'maze'"),
    ],
)
def test_what_is_missing_is_one_sentence(environment, source, said):
    with pytest.raises(ConfigError, match=said):
        open_numbered_world(environment, source, range(3))


def test_lists_of_games_are_asked_for_and_checked(games):
    for file in games.glob("mappings_*.json"):
        file.unlink()
    with pytest.raises(
        ConfigError, match=r"needs mappings_train.json and mappings_test.json in .* agentenv-alfworld/configs"
    ):
        open_numbered_world("alfworld", str(games), [0])
    (games / "mappings_test.json").write_text('[{"item_id": 1}]')
    with pytest.raises(
        ConfigError, match=r"mappings_test.json: is not one of AgentGym's lists of games: KeyError 'task_type'"
    ):
        open_numbered_world("alfworld", str(games), [0])


def test_worlds_of_a_folder_are_named_with_their_sources(tmp_path):
    for name in ("lmrlgym_maze", "webshop", "lmrlgym_wordle"):
        write_rows(tmp_path / f"{name}_test.json", [f"{name}_1"])
    sources = ("webshop=http://127.0.0.1:9", "wordle=words.txt")
    assert name_worlds(tmp_path, sources=sources) == (
        f"agentgym:maze#{tmp_path}",
        f"agentgym:webshop@http://127.0.0.1:9#{tmp_path}",
        f"agentgym:wordle@words.txt#{tmp_path}",
    )
    assert name_worlds(tmp_path / "lmrlgym_maze_test.json") == (f"agentgym:maze#{tmp_path}/lmrlgym_maze_test.json",)
    with pytest.raises(ConfigError) as caught:
        name_worlds(tmp_path, ("maz",), ("webshop", "shop=x"))
    assert [str(problem).partition(" (")[0] for problem in caught.value.problems] == [
        "environments: unknown environment 'maz'",
        "sources: got 'webshop', expected ENVIRONMENT=URL or ENVIRONMENT=PATH",
        "sources: unknown environment 'shop'",
    ]
