"""`evolvent view --serve`: as a process, from its first line to Ctrl-C; and what does not go together."""

from __future__ import annotations

import re
import signal

import httpx2
import pytest
from recorded import record

from evolvent.cli.main import main
from evolvent.cli.view import read_leaderboard


def test_it_serves_until_it_is_interrupted(command, tmp_path):
    record(tmp_path / "runs" / "one")
    process = command.start("view", tmp_path / "runs", "--serve", COLUMNS="400")
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"viewing \S+ at (http://127\.0\.0\.1:\d+)(/enter/\S{32}) \(Ctrl-C ends\)\n", line)
        assert found, line
        with httpx2.Client(base_url=found[1], trust_env=False, follow_redirects=True, timeout=30) as client:
            assert client.get("/").status_code == 403
            page = client.get(found[2])
            assert page.status_code == 200 and page.url.path == "/" and "<bdi>one</bdi>" in page.text
            assert client.get("/health").json() == {"status": "ok"}
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
    assert not (tmp_path / "runs" / "one" / "report.html").exists(), "it only reads"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no run given"),
        (["RUN", "--port", "1"], "only the viewer uses it"),
        (["RUN", "--serve", "--to", "x"], "the viewer does not write a file"),
        (["RUN", "--serve", "--port", "70000"], "expected 0 to 65535"),
        (["RUN", "--serve", "--tokenizer", "nowhere"], "nowhere does not exist"),
        (["nowhere", "--serve"], "nothing to view"),
    ],
)
def test_what_does_not_go_together(words, said, tmp_path, capsys):
    record(tmp_path / "run")
    assert main(["view", *(str(tmp_path / "run") if word == "RUN" else word for word in words)]) == 2
    assert said in capsys.readouterr().err


def test_a_leaderboard_of_files_of_anybody(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "agent-eval.json").write_text("[]")
    data, unread = read_leaderboard([tmp_path / "a" / "agent-eval.json"])
    assert data is None and [name for name, _ in unread] == ["a"]
    assert read_leaderboard([]) == (None, [])
