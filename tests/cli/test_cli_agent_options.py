"""Who plays, chosen on the command line: a policy in process and the same policy behind an endpoint play alike."""

from __future__ import annotations

import io

import pytest

import evolvent as ev
from evolvent.bench.suite import read_sheet
from evolvent.cli.collect import COMMAND as COLLECT
from evolvent.cli.main import main
from evolvent.cli.setup.settings import parse_command
from evolvent.cli.terminal.console import make_console
from evolvent.store.store import Store
from evolvent.worlds.lookup import Lookup
from tests.serve.command import command, expect_output

EVAL = ["bench", "agent-eval", "--worlds", "lookup", "--limit", "3", "--tiers", "seen,combo", "--max_tokens", "12"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "beginner"
    ev.make_policy([Lookup()], seed=3).save(folder)
    with command("--policy", str(folder), "--slots", "8") as server:
        yield folder, server


@pytest.mark.parametrize(
    "words, kind",
    [
        ([], "expert"),
        (["--policy", "xs"], "policy"),
        (["--policy", "xs", "--agent.hint", "false"], "policy"),
        (["--policy", "xs", "--agent", "random"], "random"),
        (["--endpoint", "http://127.0.0.1:1/v1", "--model", "m"], "endpoint"),
        (["--endpoint", "http://127.0.0.1:1/v1", "--model", "m", "--policy", "xs", "--agent", "policy"], "policy"),
    ],
)
def test_a_policy_or_endpoint_that_is_named_plays_unless_another_agent_is_named(words, kind):
    """The expert used to play in its place, with 100 % success."""
    parsed = parse_command(COLLECT, words, make_console(io.StringIO(), {}))
    assert parsed is not None and parsed.config.agent.kind == kind


def test_an_endpoint_plays_as_its_policy_does(served, tmp_path, capsys):
    folder, server = served
    expect_output(server, f"serving the policy beginner at {server.url}/v1")
    asked = [
        "--agent",
        "endpoint",
        "--endpoint",
        f"{server.url}/v1",
        "--model",
        "beginner",
        "--tokens",
        "true",
        "--processed",
        "true",
    ]
    assert main([*EVAL, *asked, "--to", str(tmp_path / "asked"), "--name", "over http"]) == 0
    assert main([*EVAL, "--agent", "policy", "--policy", str(folder), "--to", str(tmp_path / "own")]) == 0
    capsys.readouterr()
    found = {}
    for name in ("asked", "own"):
        with Store.open(tmp_path / name / "trajectories") as store:
            found[name] = {one.id: (one.actions, list(one.generations)) for one in store.trajectories()}
    assert found["asked"] == found["own"]
    asked, own = (read_sheet(tmp_path / name / "agent-eval.json") for name in ("asked", "own"))
    assert [row.generated for row in asked.panels] == [row.generated for row in own.panels]
    assert all(row.prompted > 0 and not row.computed for row in asked.panels)
    assert (asked.player.name, asked.player.kind, asked.player.about["model"]) == ("over http", "endpoint", "beginner")


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_an_endpoint_of_another_dialect_plays_the_same(served, tmp_path, capsys, dialect):
    """A server of ours knows the fields of both, so what they are asked for comes, and tokens and versions with it."""
    folder, server = served
    asked = [
        "--agent",
        "endpoint",
        "--endpoint",
        f"{server.url}/v1",
        "--model",
        "beginner",
        "--tokens",
        "true",
        "--processed",
        "true",
        "--worlds",
        "lookup",
        "--limit",
        "3",
        "--max_tokens",
        "12",
    ]
    own = ["--agent", "policy", "--policy", str(folder), "--worlds", "lookup", "--limit", "3", "--max_tokens", "12"]
    assert main(["collect", *asked, "--dialect", dialect, "--to", str(tmp_path / "asked")]) == 0
    assert main(["collect", *own, "--to", str(tmp_path / "own")]) == 0
    capsys.readouterr()
    found = []
    for name in ("asked", "own"):
        with Store.open(tmp_path / name / "trajectories") as store:
            found.append({one.id: (one.actions, list(one.generations)) for one in store.trajectories()})
    assert found[0] == found[1] and len(found[0]) == 3


def test_text_alone_counts_what_the_endpoint_wrote(served, tmp_path, capsys):
    _, server = served
    words = ["--agent", "endpoint", "--endpoint", f"{server.url}/v1", "--model", "beginner"]
    assert main([*EVAL, *words, "--to", str(tmp_path / "text")]) == 0
    capsys.readouterr()
    assert all(row.generated > 0 for row in read_sheet(tmp_path / "text" / "agent-eval.json").panels)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--agent", "endpoint"], "needs --endpoint URL and --model NAME"),
        (["--agent", "endpont"], "'endpoint'"),
        (["--dialect", "sglan"], "dialect: got 'sglan', expected 'openai' or 'vllm' or 'sglang'"),
        (["--agent", "endpoint", "--endpoint", "nowhere", "--model", "m"], "nowhere"),
    ],
)
def test_mistakes(words, said, capsys):
    assert main([*EVAL, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_model_that_is_not_there(served, capsys):
    _, server = served
    assert main([*EVAL, "--agent", "endpoint", "--endpoint", f"{server.url}/v1", "--model", "begginer"]) == 2
    assert "did you mean 'beginner'" in capsys.readouterr().err
