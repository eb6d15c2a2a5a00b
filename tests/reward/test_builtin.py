"""Rewards by name: right, wrong, and undecided, which is never 0."""

from __future__ import annotations

import http.server
import json
import threading
from typing import ClassVar

import pytest

from evolvent.errors import ConfigError, EvolventError, WorldError
from evolvent.identity import code_fingerprint
from evolvent.reward.builtin import REWARD_NAMES, find_reward
from evolvent.worlds.prompts.rewards import Completion
from evolvent.worlds.prompts.world import PromptWorld


def score(name, reply, **row):
    completion = Completion(reply, "the task", [{"role": "user", "content": "the task"}])
    return find_reward(name).score(completion, {"prompt": "the task", **row})


@pytest.mark.parametrize(
    ("name", "reply", "row", "expected"),
    [
        ("exact", " 4\n", {"answer": 4}, 1.0),
        ("exact", "It is #### 4", {"answer": "4"}, 1.0),
        ("exact", r"So \boxed{\frac{1}{2}}.", {"answer": r"\frac{1}{2}"}, 1.0),
        ("exact", "It is 4", {"answer": "4"}, 0.0),
        ("exact", "4", {"answer": 4.0}, 1.0),  # pandas makes numbers with a point of integers where one is missing
        ("exact", "4.0", {"answer": 4.0}, 1.0),
        ("exact", "4", {"answer": 4.5}, 0.0),
        ("exact", "4", {"answer": "4.0"}, 0.0),
        ("number", "3 + 4 = 7 apples", {"answer": "3+4=7\n#### 7"}, 1.0),
        ("number", "0.5", {"answer": "1/2"}, 1.0),
        ("number", "none", {"answer": 7}, 0.0),
        ("maths", r"\boxed{0.5}", {"answer": r"\frac{1}{2}"}, 1.0),
        ("maths", r"\boxed{x}", {"answer": r"\boxed{7}"}, 0.0),
        ("json_schema", '{"a": 1}', {"schema": {"type": "object", "required": ["a"]}}, 1.0),
        ("json_schema", '```json\n{"a": "x"}\n```', {"schema": '{"properties": {"a": {"type": "integer"}}}'}, 0.0),
        (
            "json_schema",
            "[1, 2]",
            {"schema": {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}},
            1.0,
        ),
        ("json_schema", "not JSON", {"schema": {}}, 0.0),
        ("regex", "the answer: 4", {"pattern": r"answer: \d"}, 1.0),
        ("regex:^yes", "yes, it is", {}, 1.0),
        ("regex:^yes", "no, yes", {}, 0.0),
    ],
)
def test_verdicts(name, reply, row, expected):
    assert score(name, reply, **row) == expected


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("number", {"answer": "seven"}, "holds no number: got seven"),
        ("exact", {"answer": None}, "the row has no answer"),
        ("number", {"answer": None}, "the row has no answer"),
        ("maths", {"answer": None}, "the row has no answer"),
        ("json_schema", {"schema": "no"}, "is not a JSON schema"),
        ("json_schema", {"schema": {"type": "nothing"}}, "is not a JSON schema"),
        ("regex", {"pattern": "("}, "is not a regular expression"),
        ("code", {"tests": "assert ("}, "tests of the row cannot be read"),
        ("code", {"answer": 1}, "tests of the row cannot be read"),
    ],
)
def test_what_cannot_be_decided_is_no_score(name, row, message):
    with pytest.raises(EvolventError, match=message) as caught:
        score(name, "4", **row)
    assert not isinstance(caught.value, WorldError)
    rows = [{"prompt": str(n), **row} for n in range(6)]
    world = PromptWorld(rows, find_reward(name))
    env = world.make(world.tasks("train", "seen")[0])
    env.reset()
    assert env.step("4")[1] is None


@pytest.mark.isolation
@pytest.mark.parametrize(
    ("reply", "expected"),
    [("```python\ndef add(a, b):\n    return a + b\n```", 1.0), ("def add(a, b):\n    return a - b", 0.0), ("no", 0.0)],
)
def test_code_runs_in_a_sandbox(reply, expected):
    assert score("code", reply, tests=["assert add(1, 2) == 3"]) == expected
    human = {"task_id": "t/1", "entry_point": "add", "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"}
    assert score("code", reply, **{"prompt": "def add(a, b):\n    '''Adds.'''\n", **human}) == expected


class Judging(http.server.BaseHTTPRequestHandler):
    replies: ClassVar[list[str]] = []
    requests: ClassVar[list[dict]] = []

    def do_POST(self):
        self.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        message = {"role": "assistant", "content": self.replies.pop(0)}
        body = json.dumps(
            {"id": "1", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        )
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *words):
        pass


@pytest.fixture
def judge():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judging)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"judge:m@http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_a_judge_behind_an_endpoint(judge):
    Judging.requests.clear()
    Judging.replies[:] = ['{"verdict": "pass"}', '{"verdict": "fail"}', "well"]
    assert score(judge, "four", answer="4") == 1.0 and score(judge, "five", criterion="It is even.") == 0.0
    systems = [request["messages"][0]["content"] for request in Judging.requests]
    assert "same final answer as this reference: 4" in systems[0] and "It is even." in systems[1]
    with pytest.raises(EvolventError, match="the reply has no verdict"):
        score(judge, "six")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exat", "unknown reward 'exat'.*did you mean 'exact'"),
        ("exact:4", "exact takes no argument"),
        ("regex:(", "unsupported pattern"),
        ("json_schema:missing.json", "missing.json cannot be read"),
        ("judge:x", "expected judge:MODEL@URL"),
        ("judge:m@ftp://x", "url|URL|http"),
    ],
)
def test_wrong_names_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        find_reward(name)


def test_names_weights_and_fingerprints(tmp_path):
    assert set(REWARD_NAMES) == {"exact", "number", "maths", "code", "json_schema", "regex", "judge"}
    assert find_reward("0.5*regex:a*b").weight == 0.5
    (tmp_path / "s.json").write_text('{"type": "integer"}', encoding="utf-8")
    assert score(f"json_schema:{tmp_path / 's.json'}", "3", schema={"type": "string"}) == 1.0
    names = ("exact", "number", "regex:a", "regex:b", "judge:m@http://127.0.0.1:1/v1", "judge:n@http://127.0.0.1:1/v1")
    assert len({code_fingerprint(find_reward(name).function) for name in names}) == len(names)
