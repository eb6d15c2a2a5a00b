"""`evolvent data comment` as a user meets it: code that stays what it was, going on after a stop, an endpoint."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from evolvent.bench.measures import tokenize_bare
from evolvent.cli.main import main
from evolvent.curate.comments import code_tokens, density
from evolvent.models.policy import tiny_policy
from tests.http_server import QuietHTTPServer

SKIPPED, BROKEN = "skip_me = 1\nskip_me += 1\n", "def broken(:\n    pass pass\n"
PYTHON = "def area(width, height):\n    return width * height\n"
RUST = "fn area(width: u32, height: u32) -> u32 {\n    width * height\n}\n"


class _Commenter(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint with one model, which comments the second line of what it is shown."""

    asked: list[str]
    down = False  # whether it answers what is asked about areas
    protocol_version = "HTTP/1.1"

    def _reply(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self._reply({"object": "list", "data": [{"id": "commenter", "object": "model"}]})

    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["content-length"])))
        (message,) = said["messages"]
        if self.down and "area" in message["content"]:
            self._reply({"error": {"message": "no more"}}, 400)
            return
        self.asked.append(message["content"])
        text = "SKIP" if "skip_me" in message["content"] else "2: multiplies both sides\n2: noqa\n99: nowhere"
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        self._reply(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "commenter",
                "choices": [choice],
                "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18},
            }
        )

    def log_message(self, *words):
        pass


@pytest.fixture
def commenter():
    kind = type("Commenter", (_Commenter,), {"asked": []})
    with QuietHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        kind.url = f"http://127.0.0.1:{server.server_port}/v1"
        yield kind
        server.shutdown()


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = [
        {"id": 0, "code": PYTHON, "path": "area.py"},
        {"id": 1, "source": RUST, "language": "Rust"},
        {"id": 2, "code": SKIPPED, "path": "skip.py"},
        {"id": 3, "content": BROKEN, "language": "python"},
        {"id": 4, "text": "no code"},
        {"id": 5, "code": "x", "language": "klingon"},
        {"id": 6, "code": PYTHON, "path": "again.py"},
    ]
    path = tmp_path / "code.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def words(path, commenter, to, *more):
    return ["data", "comment", str(path), "--endpoint", commenter.url, "--model", "commenter", "--to", str(to), *more]


def test_an_endpoint_comments_and_the_code_stays(rows, tmp_path, commenter, capsys):
    to = tmp_path / "commented.jsonl"
    rows.write_text(rows.read_text() + '{"id": 7, "code": "x = \'\\ud800\'", "language": "python"}\n[]\n')
    assert main(words(rows, commenter, to, "--licence", "MIT")) == 1, "two rows are refused"
    made = read(to)
    assert [row["comment_outcome"] for row in made] == [
        "commented",
        "commented",
        "skipped",
        "unparsable",
        "no_code",
        "no_code",
        "commented",
    ]
    assert made[0]["code"] == PYTHON.replace("    return", "    # multiplies both sides\n    return")
    assert made[1]["source"] == RUST.replace("    width *", "    // multiplies both sides\n    width *")
    for before, row, language in zip(read(rows)[:2], made, ("python", "rust"), strict=False):
        field = "code" if "code" in row else "source"
        assert code_tokens(row[field], language) == code_tokens(before[field], language)
        assert density(row[field], language).share > 0
    same = [{key: value for key, value in row.items() if key != "comment_outcome"} for row in made[2:6]]
    assert same == read(rows)[2:6]
    assert len(commenter.asked) == 4, "equal code is asked about once"
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "3 commented, 1 skipped, 1 unparsable, 3 notes" in said and "2 refused" in said and "row 8" in said
    card = (tmp_path / "commented.card.md").read_text()
    assert 'license: "MIT"' in card and '"model":"commenter"' in card and "3 commented" in card


def test_a_stopped_run_goes_on_and_gives_the_same(rows, tmp_path, commenter, capsys):
    whole = words(rows, commenter, tmp_path / "whole.jsonl", "--cache", str(tmp_path / "other"), "--shard_rows", "2")
    assert main(whole) == 0
    commenter.asked.clear()
    cut = words(rows, commenter, tmp_path / "cut.jsonl", "--shard_rows", "2")
    commenter.down = True
    assert main(cut) == 1, "a shard without answers is told"
    assert [row["comment_outcome"] for row in read(tmp_path / "cut.jsonl")][:3] == ["failed", "failed", "skipped"]
    assert len(commenter.asked) == 2 and "no more" in capsys.readouterr().out
    commenter.down = False
    assert main(cut) == 0
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert len(commenter.asked) == 5, "the shard that was answered is not asked about again"
    assert main(cut) == 0 and len(commenter.asked) == 5
    assert main([*cut, "--temperature", "0.5"]) == 0 and len(commenter.asked) > 5, "other settings, other answers"
    capsys.readouterr()


def test_filters(rows, tmp_path, commenter, capsys):
    to = tmp_path / "kept.parquet"
    assert main(words(rows, commenter, tmp_path / "kept.jsonl", "--filter", "--density", "0.2")) == 0
    assert [row["id"] for row in read(tmp_path / "kept.jsonl")] == [0, 1, 4, 5, 6]
    said = capsys.readouterr().out
    assert "1 filtered, skipped" in said and "1 filtered, density" in said and "2 filtered" in said
    assert main(words(rows, commenter, to, "--filter", "--density", "0.9")) == 0
    only = tmp_path / "only.jsonl"
    only.write_text(json.dumps({"code": SKIPPED, "language": "python"}) + "\n")
    assert main(words(only, commenter, to, "--filter")) == 1
    assert "no row is left" in capsys.readouterr().err


def test_a_policy_of_a_folder_writes(rows, tmp_path, capsys):
    """A model that knows nothing: its words are no notes, and no row changes."""
    from evolvent.curate.notes import format_request

    rows.write_text(json.dumps({"code": PYTHON, "path": "area.py"}) + "\n")
    text = format_request(PYTHON, "python")
    policy = tiny_policy(sorted(set(re.findall(r"\w+|[^\w\s]", text))), context=128, seed=1)
    assert len(tokenize_bare(policy, text)) < 120
    policy.save(tmp_path / "writer")
    to = tmp_path / "own.jsonl"
    assert (
        main(["data", "comment", str(rows), "--policy", str(tmp_path / "writer"), "--max_tokens", "4", "--to", str(to)])
        == 0
    )
    assert read(to) == [{"code": PYTHON, "path": "area.py", "comment_outcome": "unchanged"}]
    card = (tmp_path / "own.card.md").read_text()
    assert "written by writer" in card and '"policy":"' in card
    capsys.readouterr()


def test_mistakes(rows, tmp_path, capsys):
    assert main(["data", "comment", str(rows), "--to", str(tmp_path / "a.csv"), "--slots", "0"]) == 2
    said = capsys.readouterr().err
    assert "expected exactly one model, got none" in said and "is not a row file" in said and "--slots" in said
    assert main(["data", "comment", str(rows), "--to", "a.jsonl", "--policy", "p", "--endpoint", "u"]) == 2
    said = capsys.readouterr().err
    assert "got two" in said and "the endpoint needs a model name" in said
    assert main(["data", "comment", str(rows), "--to", "a.jsonl", "--policy", "xs", "--density", "0.1"]) == 2
    said = ["data", "comment", str(rows), "--to", "a.jsonl", "--endpoint", "u", "--model", "m", "--dialect", "vlm"]
    assert "--density and --aligned need it" in capsys.readouterr().err
    assert main(said) == 2
    assert "--dialect: unknown dialect 'vlm' (did you mean 'vllm'?)" in capsys.readouterr().err
    assert main(["data", "--help"]) == 0
    assert "let a model comment code" in capsys.readouterr().out


def test_a_training_learns_the_comments_of_an_endpoint(rows, tmp_path, commenter, capsys):
    """The generator is not tuned, and a resumed run does not ask again."""
    train = ["--train.max_steps", "2", "--context", "256", "--comments.equal", "code", "--output_dir", "run"]
    endpoint = ["--endpoint", commenter.url, "--model", "commenter"]
    assert main(["train", "comments", str(rows), *endpoint, *train]) == 0, capsys.readouterr()
    (path,) = (tmp_path / "run").rglob("comments.json")
    (counts,) = json.loads(path.read_text())
    assert counts["commented"] == 3 and counts["skipped"] == 1 and len(commenter.asked) == 4
    assert main(["train", "comments", "--resume", "run"]) == 0 and len(commenter.asked) == 4
    capsys.readouterr()
    assert main(["train", "comments", str(rows), "--endpoint", commenter.url, *train]) == 2
    assert "an endpoint and its model go together" in capsys.readouterr().err
