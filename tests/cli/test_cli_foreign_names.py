"""Settings under the names of other libraries are answered with ours; `train grpo` is `train rl --method grpo`."""

import pytest

from evolvent.cli.main import main
from evolvent.cli.search import COMMAND as SEARCH
from evolvent.cli.train.command import COMMANDS, RL_METHODS
from evolvent.cli.train.rl import METHODS, make_command
from evolvent.config import _OWN_NAMES, find_own_name, list_settings


def settings_of(command):
    return {setting.path for setting in list_settings(command.config)}


def test_every_own_name_is_a_setting_of_some_command():
    commands = [make_command("grpo"), make_command("ppo"), COMMANDS["sft"], SEARCH]
    known = set().union(*map(settings_of, commands)) | {"data", "resume", "samples", "learn.train.lr", "panel.limit"}
    assert {name for names in _OWN_NAMES.values() for name in names} <= known


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("train grpo --learning_rate 1e-5", "unknown key 'learning_rate' (here it is 'train.lr')"),
        ("train grpo --num_generations 8", "(here it is 'rl.practice.group_size')"),
        ("train grpo --max-completion-length 64", "(here it is 'max_tokens')"),
        ("train grpo --report_to wandb", "(use: evolvent runs track RUN)"),
        ("train sft data.jsonl --num_train_epochs 2", "(here it is 'train.epochs')"),
        ("train sft data.jsonl --lora_r 8", "(here it is 'adapter.rank')"),
        ("eval --model_name_or_path xs", "(here it is 'policy')"),
        ("collect --torch_dtype bfloat16", "(here it is 'dtype')"),
    ],
)
def test_a_foreign_name_is_answered_with_ours(capsys, argv, message):
    assert main(argv.split()) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_foreign_name_that_a_command_has_no_setting_for_stays_unknown():
    assert find_own_name("num_generations", ["policy"]) is None
    assert find_own_name("nonsense", ["policy"]) is None


def test_methods_of_reinforcement_learning_are_recipes_of_train(capsys):
    assert tuple(METHODS) == RL_METHODS
    for name in RL_METHODS:
        assert main(["train", name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert main(["train", "rl", "--method", name, "--help"]) == 0
        assert capsys.readouterr().out == shown
    assert main(["train", "grppo", "--policy", "xs"]) == 2
    assert "grpo" in capsys.readouterr().err
    assert main(["train", "rl", "--method", "GRPO", "--worlds", "lookup"]) == 2
    assert "did you mean 'grpo'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("eval xs --limit 3", "limit = 3"),
        ("eval xs --panel.limit 3", "limit = 3"),
        ("search --limit 3", "limit = 3"),
        ("train grpo --lr 0.25", "lr = 0.25"),
        ("train grpo --group-size=6", "group_size = 6"),
        ("evolve --samples-per-task 7", "samples_per_task = 7"),
    ],
)
def test_the_last_part_of_a_path_is_enough_where_it_is_unique(capsys, argv, line):
    assert main([*argv.split(), "--print-config"]) == 0
    assert line in capsys.readouterr().out.splitlines()


def test_a_short_name_of_several_settings_is_answered_with_all_of_them(capsys):
    assert main(["train", "grpo", "--kind", "dapo"]) == 2
    assert "ambiguous key 'kind' (use one of adapter.kind, rl.kind)" in " ".join(capsys.readouterr().err.split())


def test_help_on_an_unknown_recipe_does_not_show_that_of_another(capsys):
    assert main(["train", "gato", "--help"]) == 2
    assert "unknown recipe 'gato'" in capsys.readouterr().err
