"""`train rl` over ranks that play on servers: the same training as in one process, lost servers, refusals."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import evolvent as ev
from evolvent.cli.main import main
from evolvent.engine.endpoint import Endpoint
from evolvent.models.policy import load_policy
from tests.cli.loose_world import Loose
from tests.faults.launched import Launched
from tests.serve.command import command
from tests.serve.small_policy import completion, scripted

pytestmark = pytest.mark.filterwarnings("ignore")
WORLD = Path(__file__).with_name("loose_world.py")
FEW = (
    *("train", "rl", "--method", "grpo", "--worlds", f"{WORLD}:Loose", "--demonstrations", 0, "--tasks", 12),
    *("--panel.limit", 2, "--max_tokens", 3, "--rl.practice.tasks_per_iteration", 4, "--rl.practice.group_size", 4),
    *("--rl.practice.save_every", 1, "--rl.practice.temperature", 3, "--rl.practice.iterations", 3),
)


def read_tokens(folder: Path) -> dict[str, list[list[int]]]:
    """The tokens of the episodes of a training, by id; an id comes once, and no episode failed."""
    episodes = [one for one in ev.Store.open(folder / "trajectories").trajectories() if "practise" in one.id]
    assert len({one.id for one in episodes}) == len(episodes), "none is doubled"
    assert all(one.error is None for one in episodes), [one.error for one in episodes if one.error]
    return {one.id: [generation.ids.tolist() for generation in one.generations] for one in episodes}


def read_rows(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in lines if row["kind"] == "practise"]


@contextmanager
def serve(count: int, folder: Path):
    """Servers of the base policy, which take weights from a folder: (their addresses with commas, the servers)."""
    ev.make_policy([Loose()], seed=0).save(folder / "base")
    (folder / "weights").mkdir()
    with ExitStack() as stack:
        words = ("--policy", folder / "base", "--reload", folder / "weights")
        servers = [stack.enter_context(command(*words, OMP_NUM_THREADS="1")) for _ in range(count)]
        yield ",".join(server.url for server in servers), servers


def name_servers(urls: str, folder: Path) -> tuple[object, ...]:
    return "--endpoint", urls, "--model", "base", "--hand_over", folder / "weights", "--policy", folder / "base"


def check_same_training(run: Path, expected: Path) -> None:
    """Tokens are equal, and so are losses but for the rounding of what samplers and learners sum otherwise."""
    assert read_tokens(run) == read_tokens(expected)
    rows, expected_rows = read_rows(run), read_rows(expected)
    assert len(rows) == len(expected_rows) == 3
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert row["loss"] == pytest.approx(expected_row["loss"], abs=1e-5)
        assert (row["episodes"], row["unscored"]) == (expected_row["episodes"], 0)
        assert row["lag_max"] == expected_row["lag_max"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training in one process, with its own engine."""
    folder = tmp_path_factory.mktemp("whole")
    ev.make_policy([Loose()], seed=0).save(folder / "base")
    words = (*FEW, "--policy", folder / "base", "--to", folder / "run")
    assert main([str(word) for word in words]) == 0
    return folder / "run"


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2])
def test_ranks_that_play_on_servers_train_as_one_process(whole, tmp_path, count):
    with serve(count, tmp_path) as (urls, _):
        words = [*FEW, *name_servers(urls, tmp_path), "--to", "run"]
        with Launched(2, words, cwd=tmp_path) as ranks:
            assert ranks.wait(seconds=200) == [0, 0], ranks.errors()
    check_same_training(tmp_path / "run", whole)
    snapshots = sorted(path.name for path in (tmp_path / "weights" / "snapshots").glob("step-*"))
    assert snapshots == ["step-000002", "step-000003"], "once a version, whatever the number of servers"
    assert load_policy(tmp_path / "weights" / "snapshots" / "step-000003").version == 3


@pytest.mark.long
def test_ranks_hand_over_adapters_alone(tmp_path):
    """The same training as in one process; a version is its adapter, written once for two servers."""
    adapter = ("--adapter.kind", "lora", "--adapter.rank", 4)
    with serve(2, tmp_path) as (urls, servers):
        words = [*FEW, *adapter, *name_servers(urls, tmp_path), "--hand_over_as", "adapter", "--to", "run"]
        with Launched(2, words, cwd=tmp_path) as ranks:
            assert ranks.wait(seconds=200) == [0, 0], ranks.errors()
        for server in servers:
            with Endpoint(server.url, "base") as endpoint:
                assert [name.partition("-v")[2][:1] for name in endpoint.models()] == ["", "2", "3"]
    words = (*FEW, *adapter, "--policy", tmp_path / "base", "--to", tmp_path / "alone")
    assert main([str(word) for word in words]) == 0
    check_same_training(tmp_path / "run", tmp_path / "alone")
    files = [path.name for path in (tmp_path / "weights").rglob("*.safetensors")]
    assert set(files) == {"adapter_model.safetensors"} and len(files) == 3, "the lag of 1, and two"
    assert {row["handover_bytes"] < 100_000 for row in read_rows(tmp_path / "run")} == {True}


@pytest.mark.long
def test_a_killed_server_costs_time_and_no_episode(whole, tmp_path):
    """Its rank goes on with the other server, and the episodes under way are played again there."""
    with serve(2, tmp_path) as (urls, servers):
        words = [*FEW, "--slots", 2, *name_servers(urls, tmp_path), "--to", "run"]
        breaking = {"before": "tests.cli.slow_rank:loses_a_server", "env": {"SERVER_PID": str(servers[1].process.pid)}}
        with Launched(2, words, cwd=tmp_path, **breaking) as ranks:
            assert ranks.wait(seconds=200) == [0, 0], ranks.errors()
            assert "were lost with their endpoint and are played again" in ranks.said(0).replace("\n", " ")
        assert not servers[1].process.is_alive() and servers[0].process.is_alive()
    check_same_training(tmp_path / "run", whole)


@pytest.mark.long
def test_ranks_play_ahead_on_servers_as_one_process_does(tmp_path):
    ahead = ("--rl.practice.prefetch_rollouts", "true", "--rl.importance_correction", "truncated")
    with serve(2, tmp_path) as (urls, _):
        words = [*FEW, *ahead, *name_servers(urls, tmp_path), "--to", "run"]
        with Launched(2, words, cwd=tmp_path) as ranks:
            assert ranks.wait(seconds=200) == [0, 0], ranks.errors()
    words = (*FEW, *ahead, "--policy", tmp_path / "base", "--to", tmp_path / "alone")
    assert main([str(word) for word in words]) == 0
    assert [row["lag_max"] for row in read_rows(tmp_path / "run")] == [0, 1, 1]
    check_same_training(tmp_path / "run", tmp_path / "alone")


def answer_without_ids(number: int, path: str, body: object) -> tuple[int, dict[str, str], object]:
    """A server of OpenAI's interface alone, with a route for weights, but without token ids."""
    if path.endswith("/models"):
        return 200, {}, {"data": [{"id": "base"}]}
    if path.endswith("/update_weights_from_disk"):
        return 405, {}, {"error": {"message": "no GET here"}}
    return 200, {}, {**completion("hi"), "choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}]}


@pytest.mark.long
def test_endpoints_that_cannot_play_for_ranks_are_refused_once_before_anything_is_written(tmp_path):
    ev.make_policy([Loose()], seed=0).save(tmp_path / "base")
    with (
        scripted(answer_without_ids) as (url, _),
        command("--policy", tmp_path / "base", OMP_NUM_THREADS="1") as server,
    ):
        for urls, message in (
            (
                f"{server.url},{server.url},{server.url}",
                "each rank plays on one endpoint: got 3 endpoints for 2 rank(s)",
            ),
            (url, "returns no token ids, which training needs (serve the model with evolvent serve --policy"),
            (server.url, "takes no weights: it has no /update_weights_from_disk (start it with --reload FOLDER"),
        ):
            words = [*FEW, *name_servers(urls, tmp_path), "--to", "run"]
            with Launched(2, words, cwd=tmp_path) as ranks:
                codes, errors = ranks.wait(), "".join(ranks.errors())
            assert sorted(codes) == [1, 2] and errors.count("error") == 1, errors
            assert message in errors.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_one_process_plays_on_one_endpoint(tmp_path, capsys):
    words = [*FEW, *name_servers("http://127.0.0.1:1,http://127.0.0.1:2", tmp_path), "--to", tmp_path / "run"]
    assert main([str(word) for word in words]) == 2
    assert "start 2 ranks with torchrun, or name at most 1" in capsys.readouterr().err.replace("\n", " ")
