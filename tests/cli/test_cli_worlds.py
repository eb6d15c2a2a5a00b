"""`evolvent worlds`: list, show, play by hand, audit."""

from __future__ import annotations

import io
import sys

import pytest

from evolvent.cli.main import main
from evolvent.worlds.lookup import Lookup


def play(words, lines, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    code = main(["worlds", "play", *words])
    return code, capsys.readouterr().out


def test_list(capsys):
    assert main(["worlds", "list"]) == 0
    shown = capsys.readouterr().out
    names = [line.split()[0] for line in shown.splitlines() if line[:1].isalpha()]
    embedded = (
        "academia agentgym alfworld arithmetic babyai backoffice bfcl code countdown crafting datasci deduction "
        "entailment functions graded gridworld gymnasium "
        "household http https kitchen lookup maths maze microwave minigrid movie openenv plume preference problems "
        "prompts reading reasoning rules science sciworld searchqa sheet shop site sql textarena textcraft textworld "
        "todo verifiers virtualhome weather webreplay wordle workshop"
    )
    assert names == ["world", *embedded.split()]
    assert "hidden database" in " ".join(shown.split())


@pytest.mark.parametrize("room", ["worlds", "runs"])
def test_help_names_the_verbs(room, capsys):
    assert main([room, "--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"usage: evolvent {room} VERB ..."
    assert any(line.split()[:1] == ["show"] and len(line.split()) > 3 for line in shown)


def test_show(capsys):
    assert main(["worlds", "show", "lookup"]) == 0
    shown = capsys.readouterr().out
    world = Lookup()
    task = world.tasks("test", "seen")[0]
    assert f"horizon {world.horizon}" in shown and "1200" in shown
    assert "; ".join(world.expert(task)) in shown


def test_playing_the_expert_solves_the_task(monkeypatch, capsys):
    world = Lookup()
    actions = world.expert(world.tasks("dev", "evo")[3])
    code, shown = play(["lookup", "--tier", "evo", "--split", "dev", "--index", "3"], actions, monkeypatch, capsys)
    assert code == 0 and shown.endswith(f"solved in {len(actions)} steps\n") and "not solved" not in shown


def test_playing_badly_and_asking_for_actions(monkeypatch, capsys):
    code, shown = play(["lookup"], ["?", "dance", *["answer adam"]], monkeypatch, capsys)
    assert code == 0
    assert "boss of adam" in shown and "expected" in shown
    assert len(shown.splitlines()) < 250, "several actions a line"
    assert "solved in 2 steps" in shown


def test_the_end_of_input_ends_the_game(monkeypatch, capsys):
    code, shown = play(["crafting"], ["inventory"], monkeypatch, capsys)
    assert code == 0 and shown.endswith("ended before the end of the episode\n")


def test_the_horizon_ends_the_game(monkeypatch, capsys):
    code, shown = play(["lookup"], ["dance"] * 50, monkeypatch, capsys)
    assert code == 0 and shown.endswith(f"not solved in {Lookup().horizon} steps\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tier", "evoo"], ["unknown tier 'evoo' (did you mean 'evo'?)"]),
        (["--tier", "evoo", "--split", "tst"], ["unknown tier 'evoo'", "unknown split 'tst' (did you mean 'test'?)"]),
        (["--index", "200"], ["index: got task 200 in lookup/seen/test (expected 0 to 199)"]),
        (["--tier", "combo", "--split", "train"], ["this panel is empty"]),
    ],
)
def test_no_such_task(words, said, capsys):
    assert main(["worlds", "play", "lookup", *words]) == 2
    shown = capsys.readouterr().err
    assert all(part in shown for part in said)


def test_audit(capsys):
    assert main(["worlds", "audit", "lookup", "--split", "dev", "--limit", "5"]) == 0
    assert "no rule broken" in capsys.readouterr().out


def test_an_unsound_world_fails(capsys):
    assert main(["worlds", "audit", "workshop", "--limit", "1"]) == 1
    assert "rules broken" in capsys.readouterr().out
