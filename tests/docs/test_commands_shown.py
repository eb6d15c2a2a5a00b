"""Every `evolvent` command that README and docs show is read by the real parser: verbs, options and values exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks, commands, pages

from evolvent.cli.main import main
from evolvent.cli.terminal.parsing import Parser

SHOWN = [
    (str(block), words) for page in pages() for block in blocks(page) if not block.reason for words in commands(block)
]
INLINE = [
    (page.relative_to(ROOT).as_posix(), verb)
    for page in pages()
    for verb in sorted(set(re.findall(r"`evolvent ([a-z]+)", page.read_text(encoding="utf-8"))))
]
PARSED = 99
OWN = {"change": "lookup"}  # the world of the tutorial, which test_tutorial.py installs


@pytest.fixture
def only_parsed(monkeypatch):
    """Commands of argparse stop once their words are read; those with settings are asked to print these and stop."""
    read = Parser.parse_argv

    def read_and_stop(self, words):
        read(self, [word for word in words if word != "--print-config"])
        raise SystemExit(PARSED)

    monkeypatch.setattr(Parser, "parse_argv", read_and_stop)


def prepared(words: list[str], folder: Path) -> list[str]:
    """The words with place-holders filled in and, of `a | b PATH`, the first; a run that goes on is there."""
    while "|" in words:
        place = words.index("|")
        words = [*words[:place], *words[place + 2 :]]
    words = ["8" if word == "N" else word for word in words]
    words = [OWN.get(word, word) for word in words]
    if "--resume" in words:
        at = words.index("--resume")
        verb = " ".join(words[:at])
        run = folder / words[at + 1]
        run.mkdir(parents=True)
        (run / "config.toml").write_text('data = "shown"\n' if verb == "train" else "", encoding="utf-8")
        (run / "run.json").write_text(json.dumps({"verb": "train sft" if verb == "train" else verb}), encoding="utf-8")
    return words


def test_there_are_many():
    assert len(SHOWN) > 60


@pytest.mark.parametrize(("where", "words"), SHOWN, ids=[f"{at} {' '.join(words[:3])}" for at, words in SHOWN])
def test_a_shown_command_is_understood(where, words, only_parsed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = main([*prepared(words, tmp_path), "--print-config"])
    said = capsys.readouterr()
    assert code in (0, PARSED), f"{where}: evolvent {' '.join(words)}\n{said.err}"


WRONG = ("worlds shwo lookup", "eval x --pannel.limit 3", "search --budgets many", "runs show x --trajektory y")


@pytest.mark.parametrize("words", [*map(str.split, WRONG), ["train", "mat", "nowhere"]], ids=" ".join)
def test_a_wrong_command_is_not(words, only_parsed, capsys):
    assert main([*words, "--print-config"]) == 2


@pytest.mark.parametrize(("page", "verb"), INLINE, ids=[f"{page} {verb}" for page, verb in INLINE])
def test_a_mentioned_verb_exists(page, verb, capsys):
    assert main([verb, "--help"]) == 0


def test_every_setting_of_a_group_that_a_page_names_exists():
    """`--rl.importance_correction`, also in the middle of a sentence; names of other packages are in extending.md."""
    knobs = json.loads((ROOT / "tests" / "style" / "knobs.json").read_text(encoding="utf-8"))
    names = {line.partition(":")[0] for lines in knobs.values() for line in lines}
    shown = [path for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"] if path.name != "extending.md"]
    found = {
        (path.name, name)
        for path in shown
        for name in re.findall(r"--([a-z_0-9]+(?:\.[a-z_0-9]+)+)", path.read_text(encoding="utf-8"))
        if not any(known == name or known.startswith(f"{name}.") for known in names)
    }
    assert not {pair for pair in found if pair[0] != "renames.md"}
