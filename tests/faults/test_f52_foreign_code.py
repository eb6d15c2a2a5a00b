"""Fault 52: a model folder that brings its own code: refused by name, and none of it is run.

No flag allows it, so nothing is recorded with a run: every command and server refuses alike.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import evolvent as ev
from evolvent.cli.main import main
from evolvent.cli.train.planning import read_model_config
from evolvent.errors import EvolventError, UnsafeFile
from evolvent.models.policy import load_policy
from evolvent.serve.openai.reload import load_replacement

KNOBS = Path(__file__).parents[1] / "style" / "knobs.json"


@pytest.fixture
def bringing(tmp_path):
    """A sound model folder with code beside it that leaves a sign when it is imported; none may be left."""
    sign = tmp_path / "code was run"
    folder = tmp_path / "model"
    ev.tiny_policy(["go", "left"], context=32).save(folder)
    code = f"open({str(sign)!r}, 'w').close()\n"
    for name in ("configuration_own.py", "modeling_own.py", "tokenization_own.py"):
        (folder / name).write_text(code, encoding="utf-8")
    yield folder
    assert not sign.exists(), "code of a folder was run"


def bring(folder: Path, file: str, auto_map: dict[str, object], **more: object) -> None:
    path = folder / file
    told = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**told, "auto_map": auto_map, **more}), encoding="utf-8")


MODEL = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}


@pytest.mark.parametrize("model_type", ["llama", "own"])
def test_a_model_with_code_is_refused(bringing, model_type):
    bring(bringing, "config.json", MODEL, model_type=model_type)
    with pytest.raises(UnsafeFile, match=r"contains its own model code.*modeling_own"):
        load_policy(bringing)
    with pytest.raises(UnsafeFile):
        load_replacement(bringing.parent, "model", ev.tiny_policy(["go", "left"], context=32))


def test_the_commands_refuse_it(bringing, monkeypatch, capsys):
    bring(bringing, "config.json", MODEL)
    monkeypatch.chdir(bringing.parent)
    assert main(["eval", "--policy", "model", "--worlds", "lookup"]) == 1
    error = capsys.readouterr().err
    assert "contains its own model code" in error and "Traceback" not in error


def test_a_plan_reads_the_shape_alone(bringing):
    bring(bringing, "config.json", MODEL, model_type="own")
    with pytest.raises(EvolventError):
        read_model_config(str(bringing))


def test_a_tokenizer_with_code_is_read_without_it(bringing):
    bring(bringing, "tokenizer_config.json", {"AutoTokenizer": ["tokenization_own.Own", None]})
    try:
        found = load_policy(bringing)
    except EvolventError:
        return  # refused; the fixture sees to it that nothing was run
    assert found.tokenizer.encode("go left", add_special_tokens=False)


def test_no_knob_turns_it_on():
    knobs = json.loads(KNOBS.read_text(encoding="utf-8"))
    words = ("remote_code", "trust", "unsafe_code")
    assert not [
        knob for rows in knobs.values() for knob in rows if any(word in knob.partition(":")[0] for word in words)
    ]
