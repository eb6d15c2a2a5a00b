"""`evolvent chat` as people and scripts run it: a real process, a real training folder, a real page."""

from __future__ import annotations

import io
import re
import signal
from types import SimpleNamespace

import httpx2
import pytest

from evolvent.agents.history import Turn
from evolvent.agents.speaker import Conversation, Exchange
from evolvent.cli import chat
from evolvent.cli.main import main
from evolvent.cli.terminal.console import make_console
from evolvent.errors import ConfigError, EngineError
from tests.bench.small_policies import publish, small_policy, state
from tests.faults.launched import Launched

SHORT = ("--max-tokens", "4", "--temperature", "0")


def mistakes(*words):
    with pytest.raises(ConfigError) as caught:
        chat.run(words, make_console(io.StringIO(), {}))
    return [str(problem) for problem in caught.value.problems]


def test_one_reply_for_a_script(tmp_path, capsys):
    publish(tmp_path, 20)
    assert main(["chat", str(tmp_path), "--once", "you see a lamp", *SHORT]) == 0
    done = capsys.readouterr()
    assert done.err == "-- step 20 speaks\n" and len(done.out.split()) == 4 and done.out.count("\n") == 1
    assert main(["chat", str(tmp_path), "--once", "zebra", *SHORT]) == 1
    again = capsys.readouterr()
    assert again.out == "" and "zebra" in again.err and again.err.count("\n") == 1


def test_a_conversation_that_outlives_a_snapshot(command, tmp_path):
    """What is newest speaks from the next line on, and says so; only Ctrl-C ends it, and leaves no lease behind."""
    run = tmp_path / "run"
    state(run, "running")
    publish(run, 10)
    process = command.start("chat", run, *SHORT)

    def says(text):
        process.stdin.write(text + "\n")
        process.stdin.flush()
        return process.stdout.readline().rstrip("\n")

    try:
        assert process.stdout.readline() == "-- step 10 speaks\n"
        first = says("you see a lamp")
        assert first.startswith("step 10 > ") and first.endswith("[cut at the limit]")
        assert says("hello there").startswith("(a word is missing from the policy's vocabulary")
        publish(run, 20, keep=1)
        assert says("go north") == "-- step 20 speaks"
        assert process.stdout.readline().startswith("step 20 > ")
        (run / "snapshots" / "LATEST.json").write_text("{")
        assert says("go north").startswith("-- step 20 goes on, because a newer voice cannot be loaded: ")
        assert process.stdout.readline().startswith("step 20 > ")
        small_policy(seed=1).save(run / "model")
        state(run, "finished")
        assert says("/new\n\ngo north") == "-- final model speaks"
        assert process.stdout.readline().startswith("final model > ")
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, said, errors) == (130, "", "interrupted\n")
    assert not list((run / "snapshots" / "leases").iterdir())


def test_a_model_folder_speaks_by_its_name_until_the_input_ends(tmp_path, monkeypatch, capsys):
    small_policy(seed=4).save(tmp_path / "my model")
    monkeypatch.setattr("sys.stdin", io.StringIO("go north\ntake key"))
    assert main(["chat", str(tmp_path / "my model"), *SHORT]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "-- my model speaks"
    assert [line.partition(" > ")[0] for line in lines[1:]] == ["my model"] * 2


def test_the_page_and_how_it_ends(tmp_path):
    publish(tmp_path, 20)
    with Launched(1, ["chat", tmp_path, "--page", *SHORT], cwd=tmp_path) as process:
        process.until(tmp_path / ".out-0", 2)
        speaker, told = process.said().splitlines()
        assert speaker == "-- step 20 speaks"
        url = re.fullmatch(r"talk at (http://127\.0\.0\.1:\d+) \(Ctrl-C ends\)", told)[1]
        with httpx2.Client(base_url=url, trust_env=False, follow_redirects=True, timeout=60) as client:
            begun = client.get("/")
            assert "words, and reads nothing else" in begun.text and "temperature 0, at most 4 tokens" in begun.text
            first = client.post(begun.url.path, data={"text": "go north"})
            assert "step 20" in first.text and "cut at the limit" in first.text
            publish(tmp_path, 40)
            assert client.get("/state").json() == {"voice": "step 20", "newest": "step 40"}
            assert "step 40 speaks" in client.post(begun.url.path, data={"text": "go north"}).text
            assert client.get("/", headers={"host": "evil.example"}).status_code == 403
            process.signal(signal.SIGTERM)
            assert process.wait(seconds=60) == [143]
        assert process.errors() == [""]


def test_mistakes_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no policy found at 'none'" in mistakes("none")[0]
    assert "no policy found at 'xs'" in mistakes("xs")[0], "an untrained policy has nothing to say"
    (tmp_path / "run").mkdir()
    assert mistakes("run", "--page", "--once", "x") == ["evolvent chat: got both --page and --once (use one of them)"]
    assert "expected 0 to 65535" in mistakes("run", "--port", "70000", "--page")[0]
    assert "expected a whole number of 1 or more" in mistakes("run", "--max-tokens", "0")[0]
    assert "expected a number of 0 or more" in mistakes("run", "--temperature", "-1")[0]
    assert "did you mean '--page'" in mistakes("run", "--pages")[0]


def test_nobody_to_talk_to(tmp_path, capsys):
    (tmp_path / "run.json").write_text('{"state": "running"}')
    assert main(["chat", str(tmp_path), "--once", "go"]) == 1
    assert "does not hold a policy" in capsys.readouterr().err
    (tmp_path / "snapshots").mkdir()
    assert main(["chat", str(tmp_path), "--once", "go"]) == 1
    assert "no policy has been published yet" in capsys.readouterr().err


def test_what_is_replied_cannot_command_the_terminal(monkeypatch):
    """Escape codes and other hidden characters, in replies and in errors, are shown."""

    class Hostile:
        voice = SimpleNamespace(name="step 1")

        def refresh(self):
            return ()

        def reply(self, talk, text):
            if text == "fail":
                raise EngineError("\x1b[2Jgone")
            turn = Turn(text, (1,), True)
            return Exchange(
                text, "\x1b]0;owned\x07 \u202eevil [bold]", (), turn, "step 1", ("\x1b[31m",), False, True, 1.0
            )

    shown = io.StringIO()
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nfail\n"))
    assert chat._chat_in_terminal(Hostile(), Conversation(), make_console(shown, {})) == 0
    text = shown.getvalue()
    assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text
    assert "[U+001B]]0;owned[U+0007] [U+202E]evil [bold] (earlier turns did not fit and were left out)" in text
    assert "([U+001B][2Jgone)" in text and "-- [U+001B][31m" in text
