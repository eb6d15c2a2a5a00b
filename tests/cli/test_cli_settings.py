"""Verbs with a configuration: words, files, presets, resuming, help; every mistake at once."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import Field

from evolvent.cli.evolve import COMMAND as EVOLVE_COMMAND
from evolvent.cli.setup.settings import Command, ParsedCommand, format_help, parse_command
from evolvent.cli.terminal.console import make_console
from evolvent.config import Config, to_toml
from evolvent.errors import ConfigError


class Inner(Config):
    lr: float = Field(default=1.0, gt=0, description="learning rate")


class Job(Config):
    data: str = Field(description="what is learned")
    rounds: int = Field(default=3, ge=0, description="how often")
    train: Inner = Field(default_factory=Inner, description="how")


COMMAND = Command(
    "job", "Do it.", Job, main_field="data", resumes=True, presets={"small": {"rounds": 1}, "large": {"rounds": 9}}
)


def read(*words: str) -> ParsedCommand[Job] | None:
    return parse_command(COMMAND, words, make_console(io.StringIO(), {}))


def mistakes(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(*words)
    return [str(problem) for problem in caught.value.problems]


def test_words_files_and_presets(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text("rounds = 5\n[train]\nlr = 2.0\n", encoding="utf-8")
    assert read("d").config == Job(data="d", rounds=1), "the first preset is the default"
    assert read("d", "--preset", "large").config.rounds == 9
    assert read("d", str(file), "--preset=large", "--train.lr", "3").config == Job(
        data="d", rounds=5, train=Inner(lr=3)
    )
    assert read("--data", "d", "--config", str(file)).config.rounds == 5


def test_every_mistake_at_once():
    assert mistakes("a", "b", "--preset", "smal", "--train.rl", "1", "--rounds", "-1") == [
        "evolvent job: unexpected 'b' (write settings as --key value)",
        "--preset: unknown preset 'smal' (did you mean 'small'?)",
        "--train.rl: unknown key 'train.rl' (did you mean 'train.lr'?)",
        "rounds: got '-1', expected int >= 0",
    ]
    assert mistakes("--preset") == [
        "--preset: missing value (see evolvent job --help)",
        "data: is required",
    ]


def test_resuming_keeps_the_settings(tmp_path):
    run = tmp_path / "run"
    (only,) = mistakes("--resume", str(run))
    assert f"{run} is not a run" in only
    run.mkdir()
    (run / "config.toml").write_text(to_toml(Job(data="d", rounds=7)), encoding="utf-8")
    assert read("--resume", str(run)) == ParsedCommand(Job(data="d", rounds=7), run)
    assert read("d", "--resume", str(run), "--rounds", "7") == ParsedCommand(Job(data="d", rounds=7), run), "repeated"
    assert "got --rounds 7 --train.lr 2" in mistakes("--resume", str(run), "--rounds", "7", "--train.lr", "2")[0]
    assert "got --rounds seven" in mistakes("--resume", str(run), "--rounds", "seven")[0]
    assert "a resumed run keeps its settings: got --rounds 2" in mistakes("--resume", str(run), "--rounds", "2")[0]
    assert "keeps its settings" in mistakes("--resume", str(run), "--preset", "large")[0]
    (run / "run.json").write_text('{"verb": "other"}', encoding="utf-8")
    (only,) = mistakes("--resume", str(run))
    assert "is a run of evolvent other, not of evolvent job (use: evolvent other --resume" in only


def test_a_misspelt_option_is_told_from_a_setting():
    assert mistakes("a", "--presett", "large", "--rounds", "2") == [
        "evolvent job: unknown option '--presett' (did you mean '--preset'?)"
    ]
    assert mistakes("a", "--confg=x.toml", "--ronds", "2") == [
        "evolvent job: unknown option '--confg' (did you mean '--config'?)",
        "--ronds: unknown key 'ronds' (did you mean 'rounds'?)",
    ]


def test_a_verb_that_cannot_resume(tmp_path):
    command = Command("other", "Do.", Inner)
    with pytest.raises(ConfigError, match="unknown key 'resume'"):
        parse_command(command, ["--resume", "x"], make_console(io.StringIO(), {}))


def test_printing_the_settings(tmp_path):
    stream = io.StringIO()
    assert parse_command(COMMAND, ["a b", "--print-config", "--train.lr=.5"], make_console(stream, {})) is None
    file = tmp_path / "printed.toml"
    file.write_text(stream.getvalue(), encoding="utf-8")
    assert read(str(file)).config == Job(data="a b", rounds=1, train=Inner(lr=0.5))


def test_help():
    text = format_help(COMMAND)
    assert "usage: evolvent job [DATA] [FILE.toml] [--key value ...]" in text
    assert "--train.lr" in text and "learning rate (float > 0; default 1.0)" in text
    assert "small, large" in text and "--resume RUN" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_short_flag_of_a_renamed_setting_is_not_taken_for_a_misspelled_option():
    """`--on` is nearer to `--config` than to `--backend`, and is the short flag of the latter."""
    parsed = parse_command(EVOLVE_COMMAND, ["--on", "ray", "--to", "there"], make_console(io.StringIO(), {}))
    assert parsed is not None and (parsed.config.backend, parsed.config.output_dir) == ("ray", Path("there"))


def test_a_mistake_is_told_before_torch_is_imported():
    """In a new process, over every verb and command with settings: whoever misspells one does not wait for torch."""
    knobs = json.loads((Path(__file__).parents[1] / "style" / "knobs.json").read_text(encoding="utf-8"))
    commands = {command: [knob.partition(":")[0] for knob in own] for command, own in knobs.items()}
    done = subprocess.run(
        [sys.executable, "-c", MISTAKES, json.dumps(commands)], capture_output=True, text=True, check=True
    )
    assert len(commands) >= 40 and sum("device" in names for names in commands.values()) >= 35
    assert sum("policy" in names for names in commands.values()) >= 30
    wrong = {command: outcome for command, outcome in json.loads(done.stdout).items() if outcome}
    assert wrong == {}  # the first command that loads torch is to blame: it stays loaded


MISTAKES = """
import json, sys
from contextlib import redirect_stderr
from io import StringIO
from evolvent.cli.main import VERBS, main
from evolvent.models.placement import is_device_name

def try_mistake(words, message):
    with redirect_stderr(StringIO()) as stream:
        code = main(words)
    loaded = sorted({"torch", "transformers"} & set(sys.modules))
    is_told = message in " ".join(stream.getvalue().split())
    return [] if code == 2 and is_told and not loaded else [code, loaded, stream.getvalue()]

outcomes = {}
for command, names in json.loads(sys.argv[1]).items():
    words = command.split()
    outcomes[command] = try_mistake([*words, "--sead", "1"], "unknown key 'sead'")
    if "device" in names:
        outcomes[command] += try_mistake([*words, "--device", "gpu"], "unknown device 'gpu'")
    if "policy" in names:
        data = ["--data", "missing"] if "data" in names else []
        data += ["--memory.folder", "missing"] if command == "bench trad" else []
        outcomes[command] += try_mistake([*words, *data, "--policy", "misspelt"], "unknown policy 'misspelt'")
for verb in VERBS:
    outcomes[verb] = outcomes.get(verb, []) + try_mistake([verb, "--sead", "1"], "sead")
query = ["memory", "query", "folder", "text", "--encoder", "model", "--device", "gpu"]
outcomes["memory query"] = try_mistake(query, "unknown device 'gpu'")
outcomes["device names"] = [name for name in ("cpu", "cuda:1", "mps", "xpu") if not is_device_name(name)]
outcomes["device names"] += [name for name in ("cuda1", "CUDA", "meta", "cuda:", "") if is_device_name(name)]
print(json.dumps(outcomes))
"""
