"""`evolvent train return_text`: learns a run below lines with returns, and asks for one where it is measured."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from evolvent.cli.main import main
from evolvent.cli.train.return_text import run
from evolvent.errors import ConfigError
from evolvent.models.policy import load_policy

SHORT = ["--train.max_steps", "3", "--panel.limit", "4", "--return_text.bins", "3", "--return_text.cost", "0.1"]


def shown(words) -> str:
    console = Console(file=io.StringIO(), width=140)
    assert run(["return_text", *words], console) == 0
    return console.file.getvalue()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    words = ["collect", "--agent", "random", "--worlds", "lookup", "--limit", "6", "--output_dir", str(folder)]
    assert main(words) == 0
    return folder


def test_a_run_is_learned_below_its_returns(recorded, tmp_path):
    """The policy knows the words of the line, and resumes; the run says which return was asked for."""
    folder = tmp_path / "run"
    text = shown([str(recorded), "--asked", "0.5", "--output_dir", str(folder), *SHORT])
    assert "lookup" in text and "success" in text
    tokenizer = load_policy(folder / "model").tokenizer
    assert "return" in tokenizer.get_vocab()
    assert "asked = 0.5" in (folder / "config.toml").read_text()
    assert json.loads((folder / "run.json").read_text())
    assert shown(["--resume", str(folder)])


def test_rows_without_episodes_are_refused(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "hello"}\n')
    with pytest.raises(ConfigError, match="does not hold recorded episodes"):
        shown([str(tmp_path / "rows.jsonl"), *SHORT])
