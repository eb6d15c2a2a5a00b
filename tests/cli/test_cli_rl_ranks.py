"""`train rl` over ranks, as torchrun starts them: one speaks and writes; killed and resumed; bad input told once."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

import evolvent as ev
from evolvent.cli.main import main
from evolvent.cli.train.ranks import choose_practice_layout
from evolvent.learn.settings import Parallelism
from evolvent.methods.grpo import GRPOConfig
from evolvent.store.schema import encode_trajectory
from evolvent.trajectory import canonical_json
from tests.faults.launched import Launched

GRACE_S = 60  # a killed rank is noticed at once; a busy machine takes longer
WORLD = Path(__file__).with_name("loose_world.py")
FEW = (
    *("train", "rl", "--method", "grpo", "--worlds", f"{WORLD}:Loose", "--demonstrations", 0, "--tasks", 12),
    *("--panel.limit", 2, "--max_tokens", 3, "--rl.practice.tasks_per_iteration", 4, "--rl.practice.group_size", 4),
    *("--rl.practice.save_every", 1, "--rl.practice.temperature", 3, "--rl.kl", 0.1, "--rl.practice.iterations"),
)


def stored(folder: Path) -> dict[str, str]:
    """The episodes of a practice as lines, by id; an id comes once."""
    episodes = list(ev.Store.open(folder / "trajectories").trajectories())
    lines = {one.id: canonical_json(encode_trajectory(one)) for one in episodes}
    assert len(lines) == len(episodes), "none is doubled"
    return {name: line for name, line in lines.items() if "practise" in name}


def ids(folder: Path) -> dict[str, list[list[int]]]:
    return {
        name: [generation["ids"] for step in json.loads(line)["steps"] for generation in step["generations"]]
        for name, line in stored(folder).items()
    }


def practised(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in lines if row["kind"] == "practise"]


def state(run: Path) -> str:
    return str(json.loads((run / "run.json").read_text(encoding="utf-8"))["state"])


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The practice in one process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main([str(word) for word in (*FEW, 3, "--to", folder)]) == 0
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.long)])
def test_a_killed_rank_ends_the_run_which_resumes_with_nothing_lost_or_doubled(whole, tmp_path, capsys, victim):
    run = tmp_path / "run"
    more = ("--to", "run", "--parallel.shard", 2, "--parallel.timeout", GRACE_S)
    halting = {"before": "tests.cli.slow_rank:halts", "env": {"HALTED_RANK": str(victim)}}
    with Launched(2, [*FEW, 3, *more], cwd=tmp_path, **halting) as ranks:
        ranks.until(tmp_path / "halted", 1)
        ranks.signal(signal.SIGKILL, victim)
        codes = ranks.wait(seconds=GRACE_S)
        errors = [line for text in ranks.errors() for line in text.splitlines() if line.startswith("error")]
        assert codes == [-signal.SIGKILL if rank == victim else 1 for rank in range(2)], ranks.errors()
    assert len(errors) == 1 and re.match(rf"error: rank {victim} died, or was silent for too long", errors[0]), errors
    assert state(run) == ("running" if victim == 0 else "failed")
    assert len(practised(run)) == 1, "it was killed on the way"
    capsys.readouterr()
    assert main(["train", "rl", "--method", "grpo", "--resume", str(run), "--parallel.shard", "1"]) == 0
    assert ids(run) == ids(whole), "no episode is lost, none is another"
    rows = {row["step"]: row for row in practised(run)}
    assert all("loss" in row for row in rows.values()), "every iteration learned something"
    for row in practised(whole):
        assert rows[row["step"]]["loss"] == pytest.approx(row["loss"], rel=1e-5, abs=2e-6)
        assert rows[row["step"]]["episodes"] == row["episodes"]


@pytest.mark.filterwarnings("ignore")
def test_ranks_with_players_learn_what_one_process_does_though_a_player_is_lost(whole, tmp_path):
    more = ("--to", "run", "--on", "here?players=2")
    with Launched(2, [*FEW, 3, *more], cwd=tmp_path, before="tests.cli.slow_rank:loses_a_player") as ranks:
        assert ranks.wait(seconds=200) == [0, 0], ranks.errors()
        assert (tmp_path / "lost").exists(), "it was killed on the way"
    run = tmp_path / "run"
    assert ids(run) == ids(whole), "no episode is lost, none is another"
    first = {name: line for name, line in stored(whole).items() if "/1/" in name}
    assert first.items() <= stored(run).items(), "bit for bit"
    assert len(practised(run)) == len(practised(whole)) == 3
    for row, expected_row in zip(practised(run), practised(whole), strict=True):
        assert row["loss"] == pytest.approx(expected_row["loss"], rel=1e-5, abs=2e-6)
        assert row["episodes"] == expected_row["episodes"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("victim", [0, 1])
def test_ranks_that_play_ahead_in_players_resume_after_one_was_killed(tmp_path, capsys, victim):
    """The iterations under way are played again by the weights that they had, also in one process."""
    ahead = ("--rl.practice.prefetch_rollouts", "true", "--rl.importance_correction", "truncated")
    assert main([str(word) for word in (*FEW, 4, *ahead, "--to", tmp_path / "alone")]) == 0
    more = (*ahead, "--to", "run", "--on", "here?players=2", "--parallel.timeout", GRACE_S)
    halting = {"before": "tests.cli.slow_rank:halts_beside_players", "env": {"HALTED_RANK": str(victim)}}
    with Launched(2, [*FEW, 4, *more], cwd=tmp_path, **halting) as ranks:
        ranks.until(tmp_path / "halted", 1)
        ranks.signal(signal.SIGKILL, victim)
        codes = ranks.wait(seconds=2 * GRACE_S)
        assert codes == [-signal.SIGKILL if rank == victim else 1 for rank in range(2)], ranks.errors()
        errors = [line for text in ranks.errors() for line in text.splitlines() if line.startswith("error")]
        assert len(errors) == 1 and f"rank {victim} died" in errors[0], errors
    assert len(practised(tmp_path / "run")) == 1, "it was killed on the way"
    capsys.readouterr()
    resumed = ("train", "rl", "--method", "grpo", "--resume", "run", "--on", "here?players=3")
    with Launched(2, resumed, cwd=tmp_path) as ranks:
        assert ranks.wait(seconds=200) == [0, 0], ranks.errors()
    assert ids(tmp_path / "run") == ids(tmp_path / "alone"), "none is lost, none is another"
    rows = {row["step"]: row for row in practised(tmp_path / "run")}
    assert [rows[step]["lag_max"] for step in sorted(rows)] == [0, 1, 1, 1]
    for row in practised(tmp_path / "alone"):
        assert rows[row["step"]]["loss"] == pytest.approx(row["loss"], rel=1e-5, abs=2e-6)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_killed_rank_ends_all_ranks_and_all_players(tmp_path):
    more = ("--to", "run", "--on", "here?players=2", "--parallel.timeout", GRACE_S)
    halting = {"before": "tests.cli.slow_rank:halts_beside_players", "env": {"HALTED_RANK": "1"}}
    with Launched(2, [*FEW, 3, *more], cwd=tmp_path, **halting) as ranks:
        ranks.until(tmp_path / "halted", 1)
        players = [
            psutil.Process(int(pid)) for rank in range(2) for pid in (tmp_path / f"players-{rank}").read_text().split()
        ]
        ranks.signal(signal.SIGKILL, 1)
        assert ranks.wait(seconds=2 * GRACE_S) == [1, -signal.SIGKILL], ranks.errors()
    end = time.monotonic() + GRACE_S
    while any(map(runs, players)) and time.monotonic() < end:
        time.sleep(0.1)
    assert len(players) == 2 and not any(map(runs, players))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_one_rank_speaks_and_writes(whole, tmp_path):
    """Without a layout each rank has a share of the data; four ranks have fewer tasks than ranks at times."""
    with Launched(2, [*FEW, 3, "--to", "run"], cwd=tmp_path) as ranks:
        assert ranks.wait(seconds=200) == [0, 0], ranks.errors()
        assert "model  run/model" in ranks.said(0) and ranks.said(1) == ""
    run = tmp_path / "run"
    assert ids(run) == ids(whole) and state(run) == "finished" and (run / "report.html").is_file()
    first = {name: line for name, line in stored(whole).items() if "/1/" in name}
    assert first.items() <= stored(run).items(), "bit for bit"
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == {"run"}
    resumed = ["train", "rl", "--resume", "run"]
    with Launched(2, resumed, cwd=tmp_path) as ranks:
        assert ranks.wait(seconds=200) == [0, 0], ranks.errors()
        assert "not done again" in ranks.said(0) and ranks.said(1) == ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--to", "run", "--parallel.tp", 3), "tp 3 needs 3 processes, 2 are there"),
        pytest.param((), "several ranks need a shared folder", marks=pytest.mark.long),
        pytest.param(
            ("--to", "run", "--on", "here?players=1"),
            "each rank needs a player: got 1 for 2 ranks (set --on 'here?players=2'",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("--to", "run", "--parallel.tp", 2, "--rl.practice.top_k", 4),
            "top_k needs the logits of all tokens, but each rank holds a part of the vocabulary",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("--to", "run", "--parallel.pp", 2, "--parallel.schedule", "interleaved", "--policy", "xs"),
            "stages",
            marks=pytest.mark.long,
        ),
    ],
)
def test_bad_input_is_told_once_before_anything_is_written(tmp_path, more, said):
    with Launched(2, [*FEW, 3, *more], cwd=tmp_path) as ranks:
        codes, errors = ranks.wait(), "".join(ranks.errors())
    assert sorted(codes) == [1, 2] and errors.count("error") == 1 and said in errors.replace("\n", " "), errors
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_world_that_differs_between_processes_is_refused(tmp_path):
    """Its tasks depend on the process, so that another one cannot make it by its name."""
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "from evolvent.worlds.base import TextWorld\n"
        "class Mine(TextWorld):\n"
        "    name = 'mine'\n"
        "    def specs(self):\n"
        "        return [{'n': n, 'by': os.environ['RANK']} for n in range(60)]\n"
        "    def play(self, spec):\n"
        "        said = yield 'say go'\n"
        "        return float(said.strip() == 'go')\n"
        "    def vocabulary(self):\n"
        "        return ('say', 'go')\n",
        encoding="utf-8",
    )
    words = ["train", "rl", "--method", "grpo", "--worlds", "mine.py:Mine", "--to", "run", "--panel.limit", 2]
    with Launched(2, words, cwd=tmp_path) as ranks:
        codes, errors = ranks.wait(), "".join(ranks.errors())
    assert sorted(codes) == [1, 2], errors
    assert "rank 1 has tasks or code of world 'mine' that differ from those of rank 0" in errors.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_ranks_that_are_not_there_are_asked_for(tmp_path, capsys):
    assert main([str(word) for word in (*FEW, 3, "--to", tmp_path / "run", "--parallel.shard", 2)]) == 2
    told = capsys.readouterr().err
    assert "shard 2 needs 2 processes, 1 is there" in told
    assert "torchrun --nproc-per-node 2 -m evolvent train rl " in told and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("has_adapter", "wanted"), [(False, "shard 2"), (True, "replicate 2")])
def test_below_an_adapter_each_rank_has_all_weights_where_no_layout_is_named(has_adapter, wanted):
    """It plays with all of them anyway, and an adapter's gradients are small."""
    how = {"method": "grpo", "has_adapter": has_adapter, "output_dir": Path("runs/x"), "world_size": 2, "argv": ()}
    assert str(choose_practice_layout(Parallelism(), GRPOConfig(), **how).mesh) == wanted
    given = choose_practice_layout(Parallelism(tp=2), GRPOConfig(), **how)
    assert str(given.mesh) == "tp 2"
