"""The suite: panels and their horizons, rows from episodes, the overall rate, files of anybody, the leaderboard."""

from __future__ import annotations

import json
from dataclasses import replace
from math import sqrt

import pytest

from evolvent.agents.plain import Expert
from evolvent.bench.leaderboard import build_leaderboard
from evolvent.bench.suite import (
    HORIZONS,
    PanelResult,
    Player,
    Sheet,
    list_panels,
    overall_success,
    read_sheet,
    summarize_panel,
)
from evolvent.errors import ConfigError, CorruptRecord, SampleInvalid, UnknownSchema
from evolvent.rollout.episode import collect
from evolvent.trajectory import Score
from evolvent.view.leaderboard import leaderboard_page, tabulate_leaderboard
from evolvent.worlds.lookup import Lookup
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes, digest

SMALL = Sizes(train=30, dev=20, test=20)
WORLDS = {world.name: world for world in (Lookup(sizes=SMALL), Maze(sizes=SMALL))}


def row(world="maze", tier="seen", outcomes="1100", **changes) -> PanelResult:
    units = tuple(None if sign == "-" else float(sign) for sign in outcomes)
    made = PanelResult(world, "1", tier, "test", f"digest of {world}/{tier}", 15, outcomes, units, 8, 4, 9, 2, 1.5)
    return replace(made, **changes)


def sheet(name: str, *rows: PanelResult) -> Sheet:
    return Sheet(Player(name, "random"), 0, "2026-01-02T03:04:05Z", {"evolvent": "0"}, rows)


def test_official_horizons_replace_those_of_the_worlds():
    found = list_panels(WORLDS, limit=3)
    assert [(one.name, one.horizon) for one in found if one.world.name == "maze"] == [("maze/seen", HORIZONS["maze"])]
    assert {one.horizon for one in found if one.world.name == "lookup"} == {WORLDS["lookup"].horizon}
    own = list_panels(WORLDS, limit=3, own_horizons=True)
    assert {one.horizon for one in own if one.world.name == "maze"} == {WORLDS["maze"].horizon}
    assert all(len(one.tasks) == 3 for one in found)


def test_unknown_tiers_and_empty_panels_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'combo'"):
        list_panels(WORLDS, tiers=("comb",))
    with pytest.raises(ConfigError, match="maze"):
        list_panels(WORLDS, tiers=("combo",))


def test_a_row_has_the_order_of_its_panel_whatever_the_order_of_the_episodes():
    (contest,) = list_panels({"maze": WORLDS["maze"]}, limit=6)
    episodes = list(collect({"maze": contest.world}, contest.starts(), Expert(), engine=None))
    lost = {contest.tasks[1].id: Score(0.0, 0.0, False), contest.tasks[4].id: Score()}
    episodes = [replace(one, score=lost.get(one.task.id, one.score)) for one in reversed(episodes)]
    made = summarize_panel(contest, episodes, wall_s=2.0, computed=7)
    assert (made.outcomes, made.errors, made.success, made.unit) == ("1011-1", 1, None, None)
    assert (made.digest, made.computed) == (digest(contest.tasks), 7)
    assert made.steps == sum(len(one.steps) for one in episodes)
    with pytest.raises(SampleInvalid, match="results lack 1 tasks of maze/seen"):
        summarize_panel(contest, episodes[1:], wall_s=0.0)


def test_overall_gives_every_world_the_same_weight():
    """Worked by hand: maze .5, lookup (1 + 0) / 2; what Wilson's intervals reach, squared, times squares of weights."""
    rows = [row(outcomes="1100"), row("lookup", "seen", "11"), row("lookup", "evo", "0000")]
    found = overall_success(rows)
    assert found is not None
    half, lost = 0.349964, 0.657620  # of 2 in 4 both ways, and of 2 in 2 downwards
    won = 0.489890  # of 0 in 4 upwards
    assert found.mean == pytest.approx(0.5)
    assert found.mean - found.low == pytest.approx(sqrt((half / 2) ** 2 + (lost / 4) ** 2), abs=1e-5)
    assert found.high - found.mean == pytest.approx(sqrt((half / 2) ** 2 + (won / 4) ** 2), abs=1e-5)
    assert overall_success([*rows, row(outcomes="1-")]) is None


@pytest.mark.parametrize("outcomes", ["1", "0", "1110", "1" * 100, "0" * 99 + "1"])
def test_the_overall_interval_of_one_panel_is_its_own(outcomes):
    one = row(outcomes=outcomes)
    whole, own = overall_success([one]), one.success
    assert whole is not None and own is not None
    assert (whole.mean, whole.low, whole.high) == pytest.approx((own.mean, own.low, own.high))


def test_a_file_says_the_same_again(tmp_path):
    made = sheet("me", row(), row("lookup", outcomes="1-0"))
    made.write(tmp_path / "a.json")
    assert read_sheet(tmp_path / "a.json") == made
    told = json.loads((tmp_path / "a.json").read_text())["panels"]
    assert [one["mean"] for one in told] == [0.5, None]


def test_figures_that_contradict_the_outcomes_are_not_believed(tmp_path):
    file = tmp_path / "a.json"
    sheet("me", row(outcomes="0000")).write(file)
    told = json.loads(file.read_text())
    told["panels"][0]["mean"] = 1.0
    file.write_text(json.dumps(told))
    found = read_sheet(file).panels[0].success
    assert found is not None and found.mean == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"horizon": float("inf")},
        {"horizon": 0},
        {"steps": float("inf")},
        {"generated": 10**400},
        {"prompted": -1},
        {"wall_s": float("nan")},
        {"wall_s": float("inf")},
        {"units": [float("nan")] * 4},
        {"outcomes": "11x0"},
    ],
)
def test_numbers_that_cannot_be_are_refused(tmp_path, change):
    file = tmp_path / "a.json"
    sheet("me", row()).write(file)
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "panels": [{**told["panels"][0], **change}]}))
    with pytest.raises(CorruptRecord, match=r"is not a result of agent-eval:"):
        read_sheet(file)


def test_a_panel_that_stands_twice_in_a_file_is_refused(tmp_path):
    """The better of two tries would be shown as the only one."""
    file = tmp_path / "a.json"
    sheet("me", row(outcomes="0000"), row(outcomes="1111")).write(file)
    with pytest.raises(CorruptRecord, match="twice"):
        read_sheet(file)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": 99}, UnknownSchema),
        ({"suite": "other"}, CorruptRecord),
        ({"panels": []}, CorruptRecord),
        ({"panels": [3]}, CorruptRecord),
        ({"player": None}, CorruptRecord),
    ],
)
def test_other_files_are_refused(tmp_path, change, error):
    file = tmp_path / "a.json"
    sheet("me", row()).write(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(error):
        read_sheet(file)


def test_the_board_ranks_only_what_is_comparable():
    """Most sheets pin a panel; one with another horizon is listed apart, one with fewer panels has no overall rate."""
    full = [
        sheet("weak", row(outcomes="0001"), row("lookup", outcomes="0000")),
        sheet("strong", row(outcomes="1111"), row("lookup", outcomes="1110")),
    ]
    part = sheet("part", row(outcomes="1111"))
    strange = sheet("strange", row(outcomes="1111", horizon=50), row("lookup", outcomes="1111"))
    data = build_leaderboard([*full, part, strange])
    assert [one["name"] for one in data["players"]] == ["strong", "weak", "part", "strange"]
    assert [one["overall"] is None for one in data["players"]] == [False, False, True, True]
    assert data["players"][3]["other"] == ["maze/seen"] and data["players"][3]["cells"]["maze"] is None
    columns, rows = tabulate_leaderboard(data)
    assert columns == ("success, %", "strong", "weak", "part", "strange")
    assert rows[0] == ("overall", "87.5", "12.5", None, None)
    with pytest.raises(ConfigError):
        build_leaderboard([])


def test_the_page_shows_names_as_text():
    data = build_leaderboard([sheet("<script>alert(1)</script>\u202e", row(outcomes="1010"))])
    page = leaderboard_page(data)
    assert "\u202e" not in "".join(tabulate_leaderboard(data)[0])
    assert "<script" not in page and "&lt;script&gt;" in page and "\u202e" not in page
    assert "default-src 'none'" in page and "50.0" in page
