"""`evolvent train agdc` and `evolvent bench seek`: learned, kept, measured beside planners, and gone on with."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("stable_baselines3")

from evolvent.cli.main import main
from evolvent.methods import agdc as method
from evolvent.store.store import Store
from evolvent.view.beliefs import parse_belief

TINY = [
    "--agdc.budget",
    "256",
    "--agdc.at_once",
    "4",
    "--agdc.n_particles",
    "30",
    "--agdc.width",
    "8",
    "--agdc.zeta",
    "4",
    "--episodes",
    "3",
    "--particles",
    "60",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of PPO with and without cessation, beside one planner."""
    folder = tmp_path_factory.mktemp("agdc") / "first"
    words = ["train", "agdc", *TINY, "--agdc.algorithm", "ppo", "--control", "true", "--planners", '["go_to_mean"]']
    assert main([*words, "--to", str(folder)]) == 0
    return folder


def test_a_run_holds_policies_table_episodes_and_report(run):
    rows = json.loads((run / "table.json").read_text())
    assert [row["name"] for row in rows] == ["ppo", "ppo/without", "go_to_mean"]
    assert {row["episodes"] for row in rows} == {3} and len({row["sensor"] for row in rows}) == 1
    assert all(
        sum(row[cell] for cell in ("right_stop", "false_stop", "withheld", "unfinished", "unknown")) == 3
        for row in rows
    )
    state = json.loads((run / "run.json").read_text())
    assert state["state"] == "finished" and state["arms"] == ["ppo", "ppo/without"]
    store = Store.open(run / "trajectories")
    episodes = list(store.trajectories())
    assert len(episodes) == 9 and len({one.id for one in episodes}) == 9
    assert sum(1 for _ in store.annotations(scorer="stop")) == sum(len(one.steps) for one in episodes)
    assert {path.name for path in (run / "policy").iterdir()} == {"agdc.json", "policy.safetensors", "curve.json"}
    curve = json.loads((run / "policy" / "curve.json").read_text())
    assert curve and all(0 <= right <= ceased <= 1 <= length <= 100 for _, right, ceased, length in curve)
    without = json.loads((run / "policy-without" / "curve.json").read_text())
    assert all(ceased == 0 and length == 100 for _, _, ceased, length in without), "the control never ceases"


def test_the_viewer_finds_the_beliefs_of_a_run(run):
    found = [parse_belief(json.loads(path.read_text())) for path in sorted((run / "beliefs").iterdir())]
    assert found and all(one is not None and one.looks for one in found)


def test_the_report_needs_nothing_and_names_everybody(run):
    page = (run / "report.html").read_text()
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    names = re.findall(r'<th scope="row"><bdi>([^<]*)</bdi>', page)
    assert names == ["ppo", "ppo/without", "go_to_mean"]
    assert page.count('class="chart plume film"') == 2, "an episode of each learned policy"


def test_a_run_goes_on_without_learning_or_playing_again(run, monkeypatch):
    table = (run / "table.json").read_text()
    kept = json.loads(table)[:2]
    (run / "table.json").write_text(json.dumps(kept))
    monkeypatch.setattr(method, "agdc", lambda config: pytest.fail("learned again"))
    assert main(["train", "agdc", "--resume", str(run)]) == 0
    rows, before = json.loads((run / "table.json").read_text()), json.loads(table)
    assert rows[:2] == kept
    drop = {"decision_ms"}
    assert {k: v for k, v in rows[2].items() if k not in drop} == {k: v for k, v in before[2].items() if k not in drop}
    assert len(list(Store.open(run / "trajectories").trajectories())) == 9


def test_saved_policies_play_as_they_did(run, tmp_path, capsys):
    words = ["bench", "seek", "--policies", json.dumps([str(run)]), "--planners", '["random"]', "--episodes", "3"]
    assert main([*words, "--particles", "60", "--to", str(tmp_path / "again")]) == 0
    assert "false stops" in capsys.readouterr().out
    rows = json.loads((tmp_path / "again" / "table.json").read_text())
    assert [row["name"] for row in rows] == ["first", "random"]
    before = json.loads((run / "table.json").read_text())[0]
    for key in ("right_stop", "false_stop", "steps", "distance"):
        assert rows[0][key] == before[key], key


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "agdc", "--agdc.algorithm", "ddpg"], "heading"),
        (["train", "agdc", "--planners", '["infotaxi"]'], "infotaxis"),
        (["bench", "seek", "--policies", '["nowhere"]'], "the folder does not hold an AGDC policy"),
        (["bench", "seek", "--detector", "decided"], "left"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(words, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
