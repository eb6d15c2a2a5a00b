"""The command itself: verbs, exit codes, one clear sentence per mistake, signals, a reader that goes away."""

from __future__ import annotations

import signal
import subprocess

import pytest

import evolvent as package
from evolvent.cli import main as entry
from evolvent.cli.main import main


def test_usage(capsys):
    assert main([]) == 2
    bare = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == bare
    assert all(f"  {verb} " in bare for verb in entry.VERBS)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"evolvent {package.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["wrlds"], "error: evolvent: unknown verb 'wrlds' (did you mean 'worlds'?)\n"),
        (["worlds"], "error: evolvent worlds: missing verb (known: list, show, play, audit, page)\n"),
        (["worlds", "sohw"], "error: evolvent worlds: unknown verb 'sohw' (did you mean 'show'?)\n"),
        (["worlds", "show", "lokup"], "error: world: unknown world 'lokup' (did you mean 'lookup'?)\n"),
        (
            ["worlds", "show", "crafting:x"],
            "error: crafting: got the level 'x', expected a number (for example crafting:1)\n",
        ),
        (
            ["worlds", "show", "lookup:3"],
            "error: lookup:3: world 'lookup' does not take an option, got '3' (use 'lookup')\n",
        ),
        (["worlds", "list", "--xyz"], "error: evolvent worlds list: unknown option '--xyz' (known: --help, -h)\n"),
        (
            ["worlds", "list", "more"],
            "error: evolvent worlds list: unexpected 'more' (see evolvent worlds list --help)\n",
        ),
        (
            ["worlds", "audit", "lookup", "--split", "tset"],
            "error: evolvent worlds audit: unknown split 'tset' (did you mean 'test'?)\n",
        ),
        (["runs", "exprt"], "error: evolvent runs: unknown verb 'exprt' (did you mean 'export'?)\n"),
    ],
)
def test_one_mistake(words, said, capsys):
    assert main(words) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", said)


def test_many_mistakes(capsys):
    assert main(["worlds", "audit", "--splt", "test", "--limit", "x", "--sed", "1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "error: 3 problems",
        "  evolvent worlds audit: unknown option '--splt' (did you mean '--split'?)",
        "  evolvent worlds audit: unknown option '--sed' (did you mean '--seed'?)",
    ]
    assert "--limit" in lines[3] and "whole number" in lines[3]


def test_a_fault_of_ours_is_a_sentence_and_a_trace_on_request(capsys, monkeypatch):
    monkeypatch.setitem(entry.VERBS, "nothing", "a verb without a module")
    assert main(["nothing"]) == 1
    quiet = capsys.readouterr().err
    assert quiet.startswith("error: a fault of evolvent itself") and quiet.count("\n") == 1
    assert main(["nothing", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_hostile_names_cannot_drive_the_terminal(capsys):
    assert main(["worlds", "show", "\x1b[2J[bold]x\u202e"]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said and "\u202e" not in said
    assert "[bold]" in said


def test_a_reader_that_goes_away(command):
    first = subprocess.Popen(
        [*command.program, "worlds", "show", "lookup"],
        env=command.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first.stdout.close()
    assert (first.wait(60), first.stderr.read()) == (0, b"")
    first.stderr.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals(command, number, code):
    process = command.start("worlds", "play", "lookup")
    for line in process.stdout:
        if line.startswith("find "):
            break
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert "Traceback" not in said


def test_the_exit_code_reaches_the_shell(command, tmp_path):
    assert command("worlds", "list", cwd=tmp_path).returncode == 0
    assert command("wrlds", cwd=tmp_path).returncode == 2
    assert command("runs", "recover", tmp_path, cwd=tmp_path).returncode == 2
    assert list(tmp_path.iterdir()) == []
