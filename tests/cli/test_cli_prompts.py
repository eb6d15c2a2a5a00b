"""`--data FILE --reward NAME --tools FILE`: a user's prompts on the command line, from training to a refusal."""

from __future__ import annotations

import json
import signal
import time

import pytest

from evolvent.cli.main import main
from evolvent.cli.setup.prompt_data import data_preset, load_reward, make_prompt_world, world_of_options
from evolvent.cli.setup.registry import load_world
from evolvent.errors import ConfigError
from evolvent.worlds.prompts.rewards import Completion
from tests.faults.launched import Launched

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "red", "blue", "green", "black")
REWARDS = '''
"""Rewards of a test."""
from statistics import mean


def has_e(completion):
    return 0.1 + 0.9 * mean("e" in word for word in completion.split() or [""])


def broken(completion, answer):
    return {}[answer]


def _helper(completion):
    return 0.0
'''
TOOLS = '''
def find(name: str) -> str:
    """Finds a number."""
    return "seven"
'''
QUICK = ("--max_tokens", 4, "--rl.practice.iterations", 2, "--rl.practice.tasks_per_iteration", 4)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"say {word}", "answer": word} for word in WORDS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "score.py").write_text(REWARDS, encoding="utf-8")
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    return tmp_path


def told(capsys, *words):
    code = main([str(word) for word in words])
    caught = capsys.readouterr()
    return code, caught.out, caught.err


def test_from_a_file_and_a_function_to_a_model_and_its_measures(folder, capsys):
    data = ("--data", "rows.jsonl", "--reward", "score.py:has_e")
    code, shown, error = told(capsys, "train", "rl", "--method", "grpo", *data, *QUICK, "--to", "run")
    assert code == 0, error
    assert "prompts: 9 train, 2 dev, 3 test rows; rewards has_e x 1" in shown and "return" in shown
    settings = (folder / "run" / "config.toml").read_text(encoding="utf-8")
    assert 'worlds = ["prompts:rows.jsonl?reward=score.py:has_e"]' in settings
    code, shown, _ = told(capsys, "eval", "run", *data, "--max_tokens", 4, "--to", "eval")
    assert code == 0 and "return" in shown
    agent = ("--agent", "policy", "--policy", "run", "--max_tokens", 4)
    code, shown, _ = told(capsys, "collect", *agent, *data, "--to", "played", "--samples", 3)
    assert code == 0 and "27 episodes" in shown and "mean return" in shown
    best = ("--search.method", "best_of_n", "--search.max_tokens", 4)
    code, shown, error = told(capsys, "search", "--policy", "run", *data, *best, "--to", "searched")
    assert code == 0 and "best_of_n" in shown, error


def test_several_rewards_weights_and_tools(folder, capsys):
    words = ("--data", "rows.jsonl", "--reward", "exact,0.5*score.py:has_e", "--tools", "tools.py")
    code, shown, error = told(capsys, "train", "rl", "--method", "grpo", *words, *QUICK, "--to", "run")
    assert code == 0, error
    assert "rewards exact x 1, has_e x 0.5; tools find" in shown


def test_a_killed_training_goes_on(folder, capsys):
    words = ("train", "rl", "--method", "grpo", "--data", "rows.jsonl", "--reward", "score.py:has_e", "--max_tokens", 4)
    words += ("--rl.practice.iterations", 6, "--rl.practice.tasks_per_iteration", 4, "--rl.practice.save_every", 1)
    with Launched(1, (*words, "--to", "killed"), cwd=folder) as training:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not list(folder.glob("killed/stages/*/checkpoints/*2*")):
            assert training.processes[0].is_alive(), training.said()
            time.sleep(0.02)
        training.signal(signal.SIGKILL)
        training.wait()
    assert told(capsys, "train", "rl", "--resume", "killed")[0] == 0
    assert told(capsys, *words, "--to", "whole")[0] == 0
    files = [(folder / name / "model" / "model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert files[0] == files[1]


@pytest.mark.parametrize("verb", ["eval", "collect", "train"])
def test_a_broken_reward_is_shown_once_with_its_line(folder, capsys, verb, caplog):
    data = ("--data", "rows.jsonl", "--reward", "score.py:broken", "--max_tokens", 4)
    words = {
        "eval": ("eval", "xs", *data),
        "collect": ("collect", "--agent", "policy", "--policy", "xs", *data),
        "train": ("train", "rl", "--method", "grpo", *data),
    }[verb]
    code, _, error = told(capsys, *words, "--to", "run")
    assert code == 1
    found = "reward 'broken' raised KeyError at score.py:11: got"
    if verb == "train":
        assert f"could not be scored: got 64 of 64, expected at most 50%. 64 of them: {found}" in error
        assert caplog.text.count("score.py:11") == 1, "the measurement before has told it"
    else:
        count = 3 if verb == "eval" else 9
        assert f"{count} of {count} episodes could not be scored: {count} x {found}" in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "rows.jsonl"), "--reward: is missing"),
        (("--reward", "exact"), "--data: is missing"),
        (("--data", "rows.jsonl", "--reward"), "--reward: missing value"),
        (("--data", "rows.jsonl", "--data", "b", "--reward", "exact"), "is given 2 times"),
        (("--data", "rows.jsonl", "--reward", "exact", "--worlds", "lookup"), "beside --worlds"),
        (("--data", "nothing.csv", "--reward", "exact"), "nothing.csv cannot be read"),
        (("--data", "rows.jsonl", "--reward", "exat"), "unknown reward 'exat' (did you mean 'exact'?; or FILE.py"),
        (("--data", "rows.jsonl", "--reward", "score.py"), "score.py has the functions has_e, broken"),
        (("--data", "rows.jsonl", "--reward", "score.py:hase"), "unknown function 'hase' (did you mean 'has_e'?)"),
        (("--data", "rows.jsonl", "--reward", "gone.py:x"), "gone.py: file not found"),
        (("--data", "rows.jsonl", "--reward", "bad.py:x"), "bad.py:2: is not valid Python"),
        (("--data", "rows.jsonl", "--reward", "fails.py:x"), "fails.py:1: ModuleNotFoundError: No module named 'gone'"),
        (("--data", "rows.jsonl", "--reward", "exact", "--tools", "untyped.py"), "has a parameter without a type"),
        (("--data", "rows.jsonl", "--reward", "exact", "--tools", "tools"), "expected FILE.py"),
        (("--data", "rows.jsonl", "--reward", "json_schema:gone.json"), "gone.json cannot be read"),
        (("--data", "rows.jsonl", "--reward", "regex:("), "unsupported pattern"),
        (("--data", "rows.jsonl", "--reward", "judge:x"), "expected judge:MODEL@URL"),
        (("--data", "rows.jsonl", "--reward", "code"), "could not be scored"),
    ],
)
def test_refusals(folder, capsys, caplog, words, message):
    (folder / "bad.py").write_text("x = 1\ndef y(:\n", encoding="utf-8")
    (folder / "fails.py").write_text("import gone\n", encoding="utf-8")
    (folder / "untyped.py").write_text("def f(a):\n    return a\n", encoding="utf-8")
    code, _, error = told(capsys, "eval", "xs", *words, "--max_tokens", 4, "--to", "run")
    assert message in error + caplog.text
    assert code == (1 if "could not" in message else 2) and error.count("\n") <= 2


def test_names_of_worlds():
    assert world_of_options(["--seed", "1"]) == (["--seed", "1"], [])
    (worlds, name), problems = world_of_options(
        ["--data=a b.csv", "--reward", "exact", "--reward", "regex:^a,b&c", "--tools", "t.py:f"]
    )
    assert (worlds, problems) == ("--worlds", [])
    assert json.loads(name) == ["prompts:a b.csv?reward=exact&reward=regex:%5Ea,b%26c&tools=t.py:f"]
    assert data_preset({"max_tokens", "worlds"}) == {"max_tokens": 256}
    assert data_preset({"search.value"})["search"] == {"max_tokens": 256, "value": "rollouts"}


def test_a_world_by_its_name(folder):
    world = load_world("prompts:rows.jsonl?reward=exact&max_turns=3&tools=tools.py&success_at=0.5")
    assert world.horizon == 3 and world.splits["train"] == 9
    with pytest.raises(ConfigError, match="unknown key 'rewards'"):
        make_prompt_world("rows.jsonl?rewards=exact")
    with pytest.raises(ConfigError, match="expected a file and a reward"):
        make_prompt_world("rows.jsonl")


def test_help_shows_the_options(capsys):
    for words in (("eval",), ("collect",), ("search",), ("train", "rl", "--method", "grpo")):
        code, shown, _ = told(capsys, *words, "--help")
        assert code == 0 and "--data FILE" in shown and "--reward NAME" in shown
    assert "--data FILE" not in told(capsys, "train", "sft", "--help")[1]


@pytest.mark.parametrize("verb", ["collect", "search"])
def test_a_resumed_collection_or_search_refuses_a_changed_reward(folder, capsys, verb):
    data = ("--data", "rows.jsonl", "--reward", "score.py:has_e")
    agent = ("--agent", "policy") if verb == "collect" else ("--search.method", "best_of_n", "--search.max_tokens", 4)
    limit = ("--max_tokens", 4) if verb == "collect" else ()
    words = (verb, "--policy", "xs", *agent, *limit, *data, "--limit", 2, "--to", "run")
    assert told(capsys, *words)[0] == 0
    source = (folder / "score.py").read_text(encoding="utf-8")
    (folder / "score.py").write_text(source.replace("def has_e", "BONUS = 1\n\n\ndef has_e", 1) + "\n# a comment\n")
    with Launched(1, (verb, "--resume", "run"), cwd=folder) as resumed:
        assert resumed.wait() == [0], "what the reward does not use does not count"
    (folder / "score.py").write_text(source.replace('"e"', '"a"'), encoding="utf-8")
    with Launched(1, (verb, "--resume", "run"), cwd=folder) as refused:
        assert refused.wait() == [2]
    (error,) = refused.errors()
    assert "--resume: the code of prompts has changed since run began (start a new run; its episodes" in error


def test_imported_cached_and_partial_functions_are_rewards(folder):
    """`FILE.py:NAME` takes what the name stands for; a file alone offers its own functions."""
    (folder / "helpers_of_rewards.py").write_text("def imported(completion):\n    return 0.25\n", encoding="utf-8")
    (folder / "made.py").write_text(
        "from functools import cache, partial\nfrom helpers_of_rewards import imported\n"
        "class Length:\n    def __call__(self, completion):\n        return 3.0\n"
        "@cache\ndef cached(completion):\n    return 0.5\n"
        "def _scale(completion, factor):\n    return factor\n"
        "half = partial(_scale, factor=0.75)\n",
        encoding="utf-8",
    )
    completion = Completion("a", "p", ())
    for name, value in (("imported", 0.25), ("cached", 0.5), ("half", 0.75), ("_scale", None)):
        reward = load_reward(f"made.py:{name}")
        assert reward.name == name and (value is None or reward.score(completion, {}) == value)
    assert load_reward("made.py").name == "cached", "the only function that the file defines"
    with pytest.raises(ConfigError, match="unknown function 'Length'"):
        load_reward("made.py:Length")
