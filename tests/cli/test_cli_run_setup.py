"""The verbs that act and learn, one after the other on small numbers: collect, train, eval; and what they refuse."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path

import pytest

from evolvent.cli.main import main
from evolvent.config import resolve
from evolvent.models.policy import load_policy, tiny_policy
from evolvent.store.store import Store

SMALL = ("--worlds", "lookup")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a collected run `shown` and a trained one `taught`."""
    folder = tmp_path_factory.mktemp("work")
    assert main(["collect", *SMALL, "--limit", "30", "--to", str(folder / "shown")]) == 0
    words = ["train", str(folder / "shown"), *SMALL, "--train.tokens", "2000", "--to", str(folder / "taught")]
    assert main(words) == 0
    return folder


def told(capsys, *words: object) -> tuple[int, str, str]:
    code = main([*map(str, words)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_collected(work):
    found = list(Store.open(work / "shown" / "trajectories").trajectories())
    assert len(found) == 30 and all(trajectory.success for trajectory in found)
    kept = json.loads((work / "shown" / "run.json").read_text(encoding="utf-8"))
    assert (kept["method"], kept["state"], kept["config"]["limit"]) == ("collect", "finished", 30)


def test_a_collection_goes_on_where_it_stopped(work, tmp_path, capsys):
    code, _, _ = told(
        capsys, "collect", *SMALL, "--limit", "6", "--samples", "2", "--agent", "random", "--to", tmp_path / "a"
    )
    assert code == 0
    whole = {t.id: t.actions for t in Store.open(tmp_path / "a" / "trajectories").trajectories()}
    assert len(whole) == 12
    (tmp_path / "b").mkdir()
    config = (tmp_path / "a" / "config.toml").read_text(encoding="utf-8")
    (tmp_path / "b" / "config.toml").write_text(config, encoding="utf-8")
    first = list(Store.open(tmp_path / "a" / "trajectories").trajectories())[:5]
    with Store.open(tmp_path / "b" / "trajectories", writing=True) as store:
        for trajectory in first:
            store.append(trajectory)
    code, shown, _ = told(capsys, "collect", "--resume", tmp_path / "b")
    assert code == 0 and "7/7 episodes" in shown and "\n12 episodes" in shown
    assert {t.id: t.actions for t in Store.open(tmp_path / "b" / "trajectories").trajectories()} == whole


def test_a_policy_collects(work, tmp_path, capsys):
    words = (*SMALL, "--agent", "policy", "--policy", work / "taught", "--limit", "4", "--to", tmp_path / "run")
    assert told(capsys, "collect", *words)[0] == 0
    found = list(Store.open(tmp_path / "run" / "trajectories").trajectories())
    assert len(found) == 4 and all(trajectory.count_generated_tokens() for trajectory in found)


def test_trained(work):
    policy = load_policy(work / "taught" / "model")
    assert policy.version == 1
    assert sum(int(row.get("tokens", 0)) for row in rows(work / "taught" / "metrics.jsonl") if "loss" in row) >= 2000
    assert (work / "taught" / "report.html").is_file()


def test_trained_from_a_file_equals_trained_from_the_run(work, tmp_path, capsys):
    file = tmp_path / "shown.jsonl"
    assert told(capsys, "runs", "export", work / "shown", "--to", file)[0] == 0
    words = ("train", file, *SMALL, "--train.tokens", "2000", "--to", tmp_path / "again")
    assert told(capsys, *words)[0] == 0
    one, two = (load_policy(folder / "model").model.state_dict() for folder in (work / "taught", tmp_path / "again"))
    assert all(weight.equal(two[name]) for name, weight in one.items())


@pytest.mark.parametrize("named", ["taught", "taught/model"])
def test_eval(work, tmp_path, capsys, monkeypatch, named):
    monkeypatch.setenv("COLUMNS", "100")
    code, shown, _ = told(capsys, "eval", work / named, *SMALL, "--panel.limit", "5", "--to", tmp_path / "run")
    assert code == 0
    lines = [line.split() for line in shown.splitlines() if line.strip().startswith("lookup ")]
    assert "lookup: " in shown and " replies were not actions, most often " in shown
    assert [line[1:3] for line in lines] == [[tier, "5"] for tier in ("seen", "evo", "combo", "longer")]
    assert all("to" in line and "%" in line[3] for line in lines)
    results = rows(tmp_path / "run" / "results.jsonl")
    assert [(row["tier"], row["n"], row["arm"]) for row in results] == [
        (tier, 5, "base") for tier in ("seen", "evo", "combo", "longer")
    ]


def test_the_stored_settings_resolve_to_themselves(work):
    from evolvent.cli.train.command import COMMANDS

    again = resolve(COMMANDS["sft"].config, file=work / "taught" / "config.toml")
    assert again.train.tokens == 2000 and again.worlds == ("lookup",)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["eval", "WORK/taught", "--worlds", "crafting"], 1, "lacks 57 words of world 'crafting'"),
        (["eval", "WORK/shown"], 1, "shown does not hold a policy"),
        (["eval", "WORK"], 1, "is not a model folder: got ['shown', 'taught'], expected config.json"),
        (
            ["collect", "--resume", "WORK/taught"],
            2,
            "is a run of evolvent train sft, not of evolvent collect (use: evolvent train sft --resume ",
        ),
        (["train", "WORK/shown", "--worlds", "crafting"], 2, "unknown world 'lookup' (known: crafting)"),
        (
            ["train", "WORK/shown", "--worlds", "lookup", "--threshold", "1"],
            2,
            "does not hold an episode with a reward above 1.0 (lower --threshold",
        ),
        (["train", "WORK/shown", "--worlds", "lookup", "--to", "WORK/taught"], 2, "already holds a run"),
        (["collect", "--worlds", "lookup", "--to", "WORK/shown"], 2, "--resume"),
    ],
)
def test_refused(work, tmp_path, capsys, monkeypatch, words, code, said):
    monkeypatch.chdir(tmp_path)
    found, _, error = told(capsys, *(word.replace("WORK", str(work)) for word in words))
    assert (found, error.count("\n")) == (code, 1) and said in error, error
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def spoiled(folder: Path, kind: str) -> None:
    if kind == "pickled":
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    elif kind == "no tokenizer":
        for path in folder.glob("tokenizer*"):
            path.unlink()
    elif kind == "vocabulary":
        words = [f"word{number}" for number in range(400)]
        tiny_policy(words).tokenizer.save_pretrained(folder)
    elif kind == "cut off":
        raw = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(raw[: len(raw) // 2])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("pickled", "pickled weights only"),
        ("no tokenizer", "has no tokenizer"),
        ("vocabulary", "tokens for"),
        ("cut off", "cannot be loaded"),
    ],
)
def test_spoiled_models(work, tmp_path, capsys, kind, said):
    folder = tmp_path / "model"
    load_policy(work / "taught" / "model").save(folder)
    spoiled(folder, kind)
    code, shown, error = told(capsys, "eval", folder, *SMALL, "--panel.limit", "2", "--to", tmp_path / "run")
    assert (code, shown, error.count("\n")) == (1, "", 1) and said in error, error
    assert not (tmp_path / "run").exists()


def test_a_full_disk(command, tmp_path):
    """The largest file that may be written is the disk: what was whole before stays whole."""
    done = subprocess.run(
        [*command.program, "collect", "--agent", "random", *SMALL, "--limit", "400", "--to", "run"],
        cwd=tmp_path,
        env=command.environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "run/trajectories/log" in done.stderr and ("no space" in done.stderr or "only part" in done.stderr)
    kept = list(Store.open(tmp_path / "run" / "trajectories").trajectories())
    assert 20 < len(kept) < 400
    assert command("collect", "--resume", "run", cwd=tmp_path).returncode == 0
    assert sum(1 for _ in Store.open(tmp_path / "run" / "trajectories").ids()) == 400
