"""`evolvent bench agent-eval` and `leaderboard` as a user meets them: table, file, resuming, mistakes."""

from __future__ import annotations

import json

import pytest

from evolvent.bench.suite import read_sheet
from evolvent.cli.main import main
from evolvent.store.store import Store
from evolvent.worlds.lookup import Lookup

SMALL = ["--worlds", "maze,lookup", "--limit", "4"]


def evaluated(folder, *words) -> int:
    return main(["bench", "agent-eval", *SMALL, "--to", str(folder), *words])


def test_an_expert_and_chance_on_one_board(tmp_path, capsys):
    assert evaluated(tmp_path / "expert") == 0
    said = capsys.readouterr().out
    assert "lookup/longer" in said and "expert: 100" in said
    assert evaluated(tmp_path / "chance", "--agent", "random", "--sheet", str(tmp_path / "shared.json")) == 0
    capsys.readouterr()
    words = [str(tmp_path / "expert"), str(tmp_path / "shared.json"), "--to", str(tmp_path / "page.html")]
    assert main(["bench", "leaderboard", *words]) == 0
    said = capsys.readouterr().out
    assert said.index("expert") < said.index("random")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path, capsys):
    """One panel's row is gone and two of its episodes: only those are played, the other rows keep their seconds."""
    folder = tmp_path / "run"
    evaluated(folder)
    whole = read_sheet(folder / "agent-eval.json")
    file = folder / "agent-eval.json"
    row = json.loads(file.read_text())
    row["panels"] = row["panels"][:2]
    row["panels"][0]["wall_s"] = 99.0
    file.write_text(json.dumps(row))
    with Store.open(folder / "trajectories") as store:
        before = sum(1 for _ in store.trajectories())
    assert main(["bench", "agent-eval", "--resume", str(folder)]) == 0
    again = read_sheet(file)
    assert again.panels[0].wall_s == 99.0
    assert [one.outcomes for one in again.panels] == [one.outcomes for one in whole.panels]
    with Store.open(folder / "trajectories") as store:
        assert sum(1 for _ in store.trajectories()) == before
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["agent-eval", "--worlds", "maz"], "did you mean 'maze'?"),
        (["agent-eval", "--tiers", "comb", "--worlds", "lookup"], "did you mean 'combo'?"),
        (["agent-eval", "--horizon", "own"], "did you mean 'horizons'?"),
        (["leaderboard"], "required: files"),
    ],
)
def test_mistakes(words, said, capsys):
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err


def test_another_file_is_named(tmp_path, capsys):
    (tmp_path / "x.json").write_text("[]")
    assert main(["bench", "leaderboard", str(tmp_path / "x.json")]) == 1
    assert "is not a result of agent-eval" in capsys.readouterr().err


def test_what_a_failure_lost_is_played_again(tmp_path, capsys, monkeypatch):
    """Two experts fail (their server is gone, say): the panel is withheld; resumed, only those two are played."""
    folder = tmp_path / "run"
    lost = {task.id for task in Lookup().tasks("test", "seen")[1:3]}
    expert = Lookup.expert
    monkeypatch.setattr(Lookup, "expert", lambda self, task: None if task.id in lost else expert(self, task))
    words = ["bench", "agent-eval", "--worlds", "lookup", "--tiers", "seen", "--limit", "4", "--to", str(folder)]
    assert main(words) == 1
    assert "2 not scored, WorldError" in capsys.readouterr().out
    monkeypatch.undo()
    assert main(["bench", "agent-eval", "--resume", str(folder)]) == 0
    assert "seen, 2/2 episodes" in capsys.readouterr().out
    assert read_sheet(folder / "agent-eval.json").panels[0].outcomes == "1111"


def test_agentgyms_released_tasks_are_played(tmp_path, capsys):
    """All of them, whatever the limit of our own panels; a start that the original refuses is told, not replaced."""
    rows = [{"item_id": f"lmrlgym_maze_{number}"} for number in range(26)]
    (tmp_path / "lmrlgym_maze_test.json").write_text(json.dumps(rows))
    (tmp_path / "webshop_test.json").write_text('[{"item_id": "webshop_1"}]')
    words = ["bench", "agent-eval", "--tasks", str(tmp_path), "--to", str(tmp_path / "run")]
    assert main(words) == 2
    assert "webshop: needs the address of AgentGym's server" in capsys.readouterr().err
    assert main([*words, "--environments", "maze"]) == 0
    output = capsys.readouterr()
    assert "agentgym_maze/seen" in output.out and "expert: 100%" in output.out
    assert "skipped 1 rows; the first: lmrlgym_maze_test.json:26" in output.err
    (panel,) = read_sheet(tmp_path / "run" / "agent-eval.json").panels
    assert (panel.outcomes, panel.horizon) == ("1" * 25, 15)


def test_sources_without_files_are_refused(capsys):
    assert main(["bench", "agent-eval", "--sources", "webshop=http://127.0.0.1:9"]) == 2
    assert "name them with --tasks FOLDER" in capsys.readouterr().err
