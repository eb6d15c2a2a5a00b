"""Worlds around packages pay what their games mean: tasks played well, badly and with nonsense."""

from __future__ import annotations

import importlib.util
import shutil
from itertools import permutations

import pytest

from benchmarks import package_tasks
from benchmarks.package_games import BEST, WORST
from benchmarks.package_tasks import (
    NONSENSE,
    Outcome,
    PlayedTask,
    list_datasets,
    play_dataset,
    play_experiment,
    play_game,
)
from evolvent.errors import MissingExtra
from evolvent.trajectory import Score
from evolvent.worlds.extras.reasoning_gym import ReasoningGym
from evolvent.worlds.extras.sciworld import VARIATIONS, JvmLimits, SciWorld
from evolvent.worlds.extras.textarena import SOLO, TextArena, _solve_cryptarithm

pytestmark = pytest.mark.filterwarnings("ignore")  # of other packages: what they warn of is theirs


def is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


needs_textarena = pytest.mark.skipif(is_missing("textarena"), reason="textarena is not installed")
needs_reasoning_gym = pytest.mark.skipif(is_missing("reasoning_gym"), reason="reasoning-gym is not installed")
needs_scienceworld = pytest.mark.skipif(
    is_missing("scienceworld") or shutil.which("java") is None, reason="scienceworld or java is not installed"
)


@needs_textarena
def test_every_game_has_players():
    assert set(BEST) == set(WORST) == set(SOLO)


@needs_textarena
@pytest.mark.parametrize("game", SOLO)
def test_games_pay_the_best_player_most(game):
    world = TextArena()
    for seed in range(3):
        assert play_game(world, game, seed).list_faults() == []


@needs_textarena
@pytest.mark.long
@pytest.mark.parametrize("game", SOLO)
def test_games_pay_the_best_player_most_on_many_seeds(game):
    world = TextArena()
    for seed in range(3, 30):
        assert play_game(world, game, seed).list_faults() == []


DATASETS = list_datasets() if not is_missing("reasoning_gym") else ()


@needs_reasoning_gym
@pytest.mark.parametrize("dataset", DATASETS)
def test_datasets_pay_their_own_answer_most(dataset):
    world = ReasoningGym(dataset, trusted=True)
    assert play_dataset(world, dataset, 0).list_faults() == []


@needs_reasoning_gym
@pytest.mark.long
@pytest.mark.parametrize("dataset", DATASETS)
def test_datasets_pay_their_own_answer_most_on_many_seeds(dataset):
    world = ReasoningGym(dataset, trusted=True)
    for seed in range(1, 8):
        assert play_dataset(world, dataset, seed).list_faults() == []


@needs_scienceworld
@pytest.mark.parametrize(("kind", "simplify"), [("find-animal", ""), ("find-animal", "easy"), ("power-component", "")])
def test_experiments_pay_the_gold_path_most(kind, simplify):
    world = SciWorld("all", simplify=simplify, horizon=60, limits=JvmLimits(max_machines=1))
    try:
        assert play_experiment(world, kind).list_faults() == []
    finally:
        world.close()


@needs_scienceworld
@pytest.mark.long
@pytest.mark.parametrize("simplify", ["", "easy"])
def test_all_experiments_pay_the_gold_path_most(simplify):
    world = SciWorld("all", simplify=simplify, horizon=300, limits=JvmLimits(max_machines=1))
    try:
        for kind in VARIATIONS:
            assert play_experiment(world, kind).list_faults() == []
    finally:
        world.close()


def test_wrong_orders_are_found():
    full, half, nothing = (
        Outcome(Score(1.0, 1.0, True), 1.0),
        Outcome(Score(0.5, 0.5, False), 0.5),
        Outcome(Score(0.0, 0.0, False), 0.0),
    )
    assert PlayedTask("right", full, half, (nothing,)).list_faults() == []
    assert PlayedTask("by chance", half, nothing, (nothing,), can_win=False).list_faults() == []
    assert PlayedTask("nonsense", full, nothing, (full,)).list_faults() == ["nonsense earns as much as the best policy"]
    assert "the best policy does not earn more than the worst" in PlayedTask("swapped", half, full, ()).list_faults()
    early = Outcome(Score(0.5, 0.5, True), 0.5)
    assert "a success without full marks" in PlayedTask("early", early, nothing, ()).list_faults()
    # The score may be right where the rewards, which learning sees, are not.
    unpaid = Outcome(Score(1.0, 1.0, True), 0.0)
    assert PlayedTask("unpaid", unpaid, nothing, ()).list_faults() == [
        "the best policy does not earn more than the worst"
    ]
    assert NONSENSE


def test_missing_packages_leave_the_figures_out(monkeypatch):
    def play(seeds):
        yield PlayedTask("won", Outcome(Score(1.0, 1.0, True), 1.0), Outcome(Score(0.0, 0.0, False), 0.0), ())

    def miss(seeds):
        raise MissingExtra("sciworld", "ScienceWorld")

    monkeypatch.setattr(package_tasks, "_PACKAGES", {"here": play, "missing": miss})
    figures = package_tasks.measure_packages(quick=True)
    assert (figures["package_tasks"], figures["package_order_wrong"]) == (None, None)
    assert "pip install 'evolvent[sciworld]'" in figures["package_missing"][0]
    monkeypatch.setattr(package_tasks, "_PACKAGES", {"here": play})
    figures = package_tasks.measure_packages(quick=True)
    assert (figures["package_tasks"], figures["package_order_wrong"]) == (1, 0)


def test_solve_cryptarithm_finds_all_solutions():
    """TO + GO = OUT has one solution, as all digits of five letters show."""
    expected = []
    for digits in permutations(range(10), 4):
        values = dict(zip("TOGU", digits, strict=True))
        words = [int("".join(str(values[letter]) for letter in word)) for word in ("TO", "GO", "OUT")]
        if words[0] + words[1] == words[2] and all(values[letter] for letter in "TGO"):
            expected.append(values)
    assert expected == [{"T": 2, "O": 1, "G": 8, "U": 0}]
    assert [dict(solution) for solution in _solve_cryptarithm("TO+GO=OUT")] == expected
