"""Every command's knobs are listed in `knobs.json`, at most 45 each (a training's 58 or 69); help texts fit 80 columns.

After a wanted change of a knob: `python tests/style/test_commands.py` writes the file anew, and `make docs-commands`
the pages of the commands.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from pydantic import BaseModel

from evolvent.cli.main import VERBS, main
from evolvent.cli.train.agdc import COMMANDS as SEEKING
from evolvent.cli.train.mat import COMMANDS as TEAMS
from evolvent.cli.train.prepared_data import COMMANDS as CURATED
from evolvent.cli.train.recipes import RECIPES
from evolvent.cli.train.return_text import COMMANDS as RETURN_TEXTS
from evolvent.cli.train.rl import METHODS
from evolvent.cli.train.rl import make_command as reinforced
from evolvent.cli.train.search import COMMANDS as DISTILLED
from evolvent.cli.train.sequence import COMMANDS as SEQUENCES
from evolvent.config import list_settings, present_path

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "knobs.json"
CONFIGURED = {
    "collect": "collect",
    "eval": "eval",
    "evolve": "evolve",
    "collect --experts": "collect_experts",
    "bench agent-eval": "agenteval",
    "bench bfcl": "bfclbench",
    "bench calls": "bfclbench",
    "bench code": "bfclbench",
    "bench trad": "tradbench",
    "search": "search",
    "serve": "serve",
    "watch": "watch",
    **{f"train {recipe}": "train.command" for recipe in RECIPES},
    **{f"train rl --method {name}": "train.rl" for name in METHODS},
    "train rl --method ppo --policy mlp": "train.control",
    **{f"train {name}": "train.search" for name in DISTILLED},
    **{f"train {name}": "train.prepared_data" for name in CURATED},
    **{f"train {name}": "train.agdc" for name in SEEKING},
    **{f"train {name}": "train.mat" for name in TEAMS},
    **{f"train sequence --method {name}": "train.sequence" for name in SEQUENCES},
    **{f"train {name}": "train.return_text" for name in RETURN_TEXTS},
    "bench seek": "train.agdc",
}  # command -> its module
# A training is put together of five configurations: learner, optimizer, adapter, layout, and what is kept.
# Every command that runs a model has its device, dtype and context.
MOST = {f"train {recipe}": 60 for recipe in RECIPES} | {f"train rl --method {name}": 83 for name in METHODS}
MOST |= {"train tsllm": 57, "search": 66}  # a search; rStar
MOST |= {"evolve": 62, "train rl --method scaling_inter": 85, "train openr": 92}  # labels, a practice and a search, too
MOST |= {"train sequence --method qdt": 60}  # values, and a policy
MOST |= {"train comments": 56, "train hammer": 46, "train p3": 46}
SUBVERBS = {
    "worlds": ("", "list", "show", "play", "audit", "page"),
    "runs": ("", "list", "show", "export", "import", "recover", "track", "push", "pull"),
    "bench": ("", "agent-eval", "bfcl", "calls", "code", "trad", "seek", "leaderboard", "compare", "study"),
    "train": ("", *RECIPES, "rl", *DISTILLED, *CURATED, *SEEKING, *TEAMS, *RETURN_TEXTS, "sequence"),
    "data": ("", "stats", "convert", "mask", "irrelevance", "select", "dedup", "comment"),
    "memory": ("", "build", "explain", "query"),
    "models": ("", "list", "get", "show"),
}


def _config(verb: str) -> type[BaseModel]:
    module = import_module(f"evolvent.cli.{CONFIGURED[verb]}")
    if CONFIGURED[verb] == "train.control":
        command = module.COMMAND
    elif CONFIGURED[verb] == "train.rl":
        command = reinforced(verb.split()[-1])
    else:
        command = module.COMMANDS[verb.split()[-1]] if verb.startswith("train ") else module.COMMAND
        command = module.CALLS_COMMAND if verb == "bench calls" else command
        command = module.CODE_COMMAND if verb == "bench code" else command
    found: type[BaseModel] = command.config
    return found


def current() -> dict[str, list[str]]:
    return {verb: [f"{k.path}: {k.type} = {k.default}" for k in list_settings(_config(verb))] for verb in CONFIGURED}


@pytest.mark.parametrize("verb", CONFIGURED)
def test_knobs_are_frozen(verb):
    assert current()[verb] == json.loads(GOLDEN.read_text(encoding="utf-8"))[verb]


@pytest.mark.parametrize("verb", CONFIGURED)
def test_knobs_are_few_and_described(verb):
    found = list_settings(_config(verb))
    assert 0 < len(found) <= MOST.get(verb, 45)
    assert not [knob.path for knob in found if not knob.description]


@pytest.mark.parametrize("verb", CONFIGURED)
def test_the_folder_of_a_run_is_named_by_to(verb):
    """Commands that were added later used to refuse `--to`, which the guides write."""
    if "output_dir" in _config(verb).model_fields:
        assert present_path(_config(verb), "to") == "output_dir"


@pytest.fixture(scope="module")
def command_pages() -> dict[str, str]:
    spec = spec_from_file_location("command_pages", ROOT / "tools" / "command_pages.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.command_pages()
    return pages


LINES = [[]] + [[verb, sub] if sub else [verb] for verb in VERBS for sub in SUBVERBS.get(verb, ("",))]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_help_fits(words, capsys):
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "evolvent" in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_help_names_every_knob(capsys):
    for verb in CONFIGURED:
        main([*verb.split(), "--help"])
        shown = capsys.readouterr().out
        for knob in list_settings(_config(verb)):
            assert f"--{knob.path}" in shown


def test_the_pages_of_the_commands_are_up_to_date(command_pages):
    """After a change of a command or a setting: `make docs-commands`."""
    kept = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "commands").glob("*.md")}
    assert command_pages == kept


def test_every_command_has_a_page(command_pages):
    text = "".join(command_pages.values())
    for verb in CONFIGURED:
        if "--policy" not in verb and "--experts" not in verb:  # settings of a command that has a page
            assert f"evolvent {verb}" in text, verb
    for words in LINES:
        assert f"# evolvent {' '.join(words)}".rstrip() in text or not words or words[:2] == ["train", "rl"], words


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")
