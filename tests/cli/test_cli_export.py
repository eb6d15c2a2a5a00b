"""`evolvent export` as a user meets it: two folders, their figures, a card; a folder whole or not at all."""

import json

import pytest

from evolvent.cli.main import main
from evolvent.curate.irrelevance import sample_to_row
from evolvent.learn.taught import build_demonstration
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import load_policy, tiny_policy
from evolvent.models.quantized import is_quantized
from evolvent.scale.initial import make_policy
from tests.methods.spelling import Spell, run_of

pytest.importorskip("torchao")
WORDS = [*"[](),=:?\"'", "say", "it", "user", "string", "text", "rain", "red", "blue", "the"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_policy(sorted(WORDS), context=128, seed=1).save(tmp_path / "model")
    return "model"


def test_both_are_written_and_measured(model, tmp_path, capsys):
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": "text"}}}
    tools = (Tool("say", "say it", schema), Tool("rain", "the rain", schema))
    rows = [
        sample_to_row(CallSample(word, (Message("user", f"say {word}"),), tools, (Call("say", {"text": word}),)))
        for word in ("red", "blue")
    ]
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["export", model, "--test", "calls.jsonl", "--tokens", "2", "--prompt", "4", "--max_tokens", "4"]
    assert main([*words, "--licence", "MIT", "--to", "out"]) == 0
    assert "CPU ms a token" in capsys.readouterr().out
    row = json.loads((tmp_path / "out" / "export.json").read_text())
    assert set(row["kinds"]) == {"float", "int8"} and is_quantized(tmp_path / "out" / "int8")
    for name, kind in row["kinds"].items():
        assert kind["bytes"] == (tmp_path / "out" / name / "model.safetensors").stat().st_size
        assert kind["cpu_ms"] > 0 and kind["accuracy"]["plain"][0] == 0.0
    assert row["kinds"]["int8"]["bytes"] < 0.5 * row["kinds"]["float"]["bytes"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'license: "MIT"' in card and "int8/model.safetensors" in card and "| plain |" in card
    assert load_policy(tmp_path / "out" / "int8").dialect.name == "words"


def test_a_policy_with_an_adapter_plays_its_world(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    policy = make_policy([Spell()], seed=1, context=48)
    tuned = adapt(policy, AdapterConfig(kind="lora", rank=2), seed=0)
    from evolvent.learn.objectives import weighted_nll

    said = build_demonstration("t", policy.dialect.open("", "say red blue"), policy.dialect.action("red ; blue"))
    with run_of(tmp_path / "run", Spell()) as run:
        learned = run.fit(tuned, [said], weighted_nll, tokens=40)
    learned.save(tmp_path / "tuned")
    rows = [{"prompt": "say red blue", "completion": "red ; blue"}]
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert main(["export", "tuned", "--test", "rows.jsonl", "--tokens", "2", "--prompt", "4", "--to", "out"]) == 0
    kinds = json.loads((tmp_path / "out" / "export.json").read_text())["kinds"]
    (name,) = kinds["float"]["accuracy"].keys() - {"how easy they are"}
    assert name == "loss a token of 1 test rows, nats"
    assert kinds["float"]["accuracy"][name] == pytest.approx(kinds["int8"]["accuracy"][name], abs=0.1)
    assert not (tmp_path / "out" / "float" / "adapter_config.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["xs"], "untrained"),
        (["gone"], "unknown policy 'gone'"),
        (["model", "--test", "gone"], "nothing at gone"),
        (["model", "--license", "MTI"], "--license: unknown license 'MTI' (did you mean 'MIT'"),
        (["model", "--worlds", "nowhere"], "nowhere"),
        (["model", "--tokens", "200"], "context of 128"),
        (["model", "--tokens", "0"], "1 or more"),
    ],
)
def test_mistakes_are_told_and_nothing_is_left(model, tmp_path, capsys, words, said):
    assert main(["export", *words, "--to", "out"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_folder_that_is_there_stays(model, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert main(["export", model, "--to", "out"]) == 2
    assert "already exists" in capsys.readouterr().err
