"""`evolvent train tsllm` and `evolvent train openr`: whole runs from the command line, gone on with, and refused."""

from __future__ import annotations

import json

import pytest

from evolvent.cli.main import main
from evolvent.cli.train.search import COMMANDS, make_preference_sequences
from evolvent.models.policy import load_policy
from evolvent.scale.initial import make_policy
from evolvent.worlds.panel import Sizes
from evolvent.worlds.preference.world import Preference

SEARCH = ("width", 2, "depth", 2, "simulations", 2, "max_tokens", 24, "paths", 1)
TSLLM = (
    "--worlds",
    "microwave",
    "--demonstrations",
    1,
    "--clone_tokens",
    400,
    "--tasks",
    2,
    "--panel.limit",
    2,
    "--tsllm.rounds",
    1,
    "--tsllm.samples",
    3,
    "--tsllm.trajectories",
    1,
    "--tsllm.judge_tokens",
    60,
    "--tsllm.tokens",
    60,
)
OPENR = (
    "--worlds",
    "arithmetic:2",
    "--demonstrations",
    30,
    "--clone_tokens",
    6000,
    "--tasks",
    6,
    "--panel.limit",
    2,
    "--openr.samples",
    4,
    "--openr.labelling.kind",
    "shepherd",
    "--openr.labelling.count",
    2,
    "--openr.labelling.max_tokens",
    24,
    "--openr.prm_tokens",
    60,
    "--openr.practice.iterations",
    1,
    "--openr.practice.tasks_per_iteration",
    2,
    "--openr.practice.group_size",
    2,
)


def told(capsys, *words):
    code = main([str(word) for word in words])
    caught = capsys.readouterr()
    return code, caught.out, caught.err


def search(name):
    return [
        word for key, value in zip(SEARCH[::2], SEARCH[1::2], strict=True) for word in (f"--{name}.search.{key}", value)
    ]


@pytest.mark.parametrize(("name", "words"), [("tsllm", TSLLM), ("openr", OPENR)])
def test_a_whole_run_and_going_on_with_it(tmp_path, capsys, name, words):
    run = tmp_path / "run"
    code, shown, error = told(capsys, "train", name, *words, *search(name), "--to", run)
    assert code == 0, error
    assert "guided" in shown and (run / "report.html").exists()
    assert (load_policy(run / "judge").value_head is not None) == (name == "tsllm")
    assert load_policy(run / "model").value_head is None or name == "openr"
    stages = (run / "stages.jsonl").read_text(encoding="utf-8")
    weights = (run / "model" / "model.safetensors").read_bytes()
    arms = {json.loads(line)["arm"] for line in (run / "results.jsonl").read_text(encoding="utf-8").splitlines()}
    assert arms == {"base", name, "guided"}
    assert told(capsys, "train", name, "--resume", run)[0] == 0
    assert (run / "stages.jsonl").read_text(encoding="utf-8") == stages, "nothing is done twice"
    assert (run / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (
            ("tsllm", "--worlds", "microwave", "--demonstrations", 1, "--panel.split", "train"),
            "training tasks are also evaluation tasks, for example",
        ),
        (("tsllm", "--tsllm.reward", "model"), "'countdown' does not have labeled pairs"),
        (("tsllm", "--preset", "alignment", "--pairs", 0), "pairs: the list is empty"),
        (("tsllm", "--tsllm.search.score", "process"), "search.score: got 'process', expected 'value' or 'outcome'"),
        (("tsllm", "--tsllm.search.level", "token"), "'countdown' has episodes of several turns"),
        (("openr", "--worlds", "countdown"), "world 'countdown' has several turns"),
        (("openr", "--openr.search.score", "value"), "the judge is a process model"),
        (("openr", "--worlds", "arithmetic", "--demonstrations", 99999), "got 99999 for world"),
        (("tslm",), "unknown recipe 'tslm' (did you mean 'tsllm'?)"),
    ],
)
def test_refusals(tmp_path, capsys, words, what):
    code, _, error = told(capsys, "train", *words, "--to", tmp_path / "run")
    assert code == 2 and what in error and not (tmp_path / "run").exists()


def test_a_setting_beside_the_defaults_leaves_the_others():
    from evolvent.config import resolve

    given = resolve(COMMANDS["tsllm"].config, overrides=("--tsllm.search.width", "9"))
    assert (given.tsllm.search.width, given.tsllm.search.sampled, given.tsllm.search.paths) == (9, True, 1)
    given = resolve(COMMANDS["openr"].config, overrides=("--openr.search.width", "9"))
    assert (given.openr.search.score, given.openr.search.method) == ("process", "beam")
    for command in COMMANDS.values():
        for preset in command.presets.values():
            assert resolve(command.config, preset=preset)


def test_labelled_pairs_become_read_outs_of_both_sides():
    world = Preference(length=32, sizes=Sizes(train=6, dev=2, test=2))
    policy = make_policy([world], context=256)
    parts = make_preference_sequences(world, policy, count=3, seed=0)
    known = world.pairs("train", 3, 0)
    assert len(parts) == 6
    for at, pair in enumerate(known):
        for part, said in zip(parts[2 * at : 2 * at + 2], (pair.chosen, pair.rejected), strict=True):
            wanted = [*policy.dialect.open(world.instructions, pair.prompt), *policy.dialect.action(said)]
            assert part.ids[:-1].tolist() == wanted
            assert part.weight.nonzero()[0].tolist() == [len(wanted)], "read behind the last token"
