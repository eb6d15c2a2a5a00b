"""`evolvent train mat`: a team is trained, measured and drawn; a run goes on; another team begins from its weights."""

from __future__ import annotations

import json

import pytest

from evolvent.cli.main import main
from evolvent.store.store import Store

TINY = ["--mat.rows", "8", "--mat.steps", "4", "--mat.decisions", "64", "--episodes", "4", "--agents", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mat") / "first"
    assert main(["train", "mat", "rescue", *TINY, "--to", str(folder)]) == 0
    return folder


def test_a_run_holds_policy_table_episodes_and_page(run):
    (row,) = json.loads((run / "table.json").read_text())
    assert (row["name"], row["world"], row["episodes"], row["lost"]) == ("mat", "team_rescue", 4, 0)
    assert row["return"][0] <= row["optimum"][0]
    episodes = list(Store.open(run / "trajectories").trajectories())
    assert len({one.id for one in episodes}) == 4 and all("2 agents" in one.task.kind for one in episodes)
    assert sum(one.score.raw for one in episodes) / 4 == pytest.approx(row["return"][0])
    page = (run / "report.html").read_text()
    assert "<script" not in page and page.count('class="scroll frames"') == 3


def test_a_run_goes_on_without_training_again(run, capsys):
    weights = {path.name: path.read_bytes() for path in (run / "policy").iterdir()}
    (run / "table.json").unlink()
    assert main(["train", "mat", "--resume", str(run)]) == 0
    assert {path.name: path.read_bytes() for path in (run / "policy").iterdir()} == weights
    assert json.loads((run / "table.json").read_text())[0]["episodes"] == 4


def test_another_team_begins_from_its_weights(run, tmp_path, capsys):
    words = ["train", "mat", "rescue", *TINY[:-2], "--start", str(run), "--agents", "3", "--to", str(tmp_path / "more")]
    assert main(words) == 0
    capsys.readouterr()
    assert main(["train", "mat", "spread", *TINY[:-2], "--start", str(run), "--to", str(tmp_path / "other")]) == 1
    assert "is no policy of this team" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    (["recsue"], "did you mean 'rescue'?"),
    (["rescue", "--agents", "40"], "40 agents"),
    (["rescue", "--mat.kind", "mapo"], "mappo"),
    (["rescue", "--start", "nowhere"], "nowhere"),
])  # fmt: skip
def test_mistakes_are_told(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "mat", *words]) in (1, 2)
    err = capsys.readouterr().err
    assert said in " ".join(err.split()) and "Traceback" not in err
