"""An MCP server as a world: a child process written from the specification, HTTP servers good and bad, our own."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest

import evolvent as ev
from evolvent.errors import (
    AccessDenied,
    ConfigError,
    EnvLost,
    InvalidAction,
    LimitExceeded,
    MissingExtra,
    SessionGone,
    StepTimeout,
    WorldError,
)
from evolvent.messages import Call
from evolvent.serve.given import ClientTimeouts, WorldRules
from evolvent.serve.mcp.client import AnswerReward, CallResult, CallReward, McpWorld, ReportedReward
from evolvent.serve.mcp.face import McpDialect
from evolvent.trajectory import Start
from evolvent.web import Access
from tests.http_server import QuietHTTPServer
from tests.serve.small_host import Count, Till, emptied, faces

CHILD = [sys.executable, str(Path(__file__).with_name("mcp_child.py"))]
TASKS = {"train": [{"prompt": "what is in the jar?", "answer": "two figs"}, {"prompt": "think"}]}


def children():
    """Live processes of the child's program, below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any("mcp_child" in word for word in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture
def make():
    """Makes worlds; all are closed at the end, and no process is left."""
    made = []

    def world(server=tuple(CHILD), **options):
        options.setdefault("tasks", TASKS)
        made.append(McpWorld(server, **options))
        return made[-1]

    yield world
    for one in made:
        one.close()
    assert children() == []


def begun(world, number=0):
    env = world.make(world.tasks("train", "seen")[number])
    env.reset()
    return env


def call(name, **arguments):
    return f"{name} {json.dumps(arguments)}"


def test_what_the_server_and_the_caller_tell(make):
    world = make(rules=WorldRules(horizon=5))
    assert (world.name, world.version, world.horizon) == ("pantry", "3", 5)
    names = ["die", "fail", "junk", "long", "look", "picture", "pid", "put", "sleep", "stay", "finish"]
    assert [tool.name for tool in world.tools] == names, "all pages, and the tool that ends"
    assert world.instructions.startswith("A pantry of jars.\nWrite one call at a time")
    assert "put(jar, what): Put something into a jar.\n" in world.instructions
    assert "finish(answer)" in world.instructions
    assert world.expert(world.tasks("train", "seen")[0]) is None and world.vocabulary() is None
    assert children() == [], "what told this has ended"


def test_an_episode(make):
    world = make()
    env = world.make(world.tasks("train", "seen")[0])
    assert env.reset(seed=3) == ("what is in the jar?", {})
    put = env.step(call("put", jar="a", what="figs"))
    assert put == ("a holds figs", 0.0, False, False, {"structured": {"jars": 1}})
    assert env.step('look {"jar": "a"}')[0] == "figs"
    assert env.step(call("look", jar="b")) == ("no jar b", 0.0, False, False, {"invalid": True})
    assert env.step("picture")[0] == "[image image/png]\ninside"
    last = env.step(call("finish", answer="  Two   FIGS "))
    assert last == ("", 1.0, True, False, {})
    with pytest.raises(SessionGone):
        env.step("pid")
    assert len(children()) == 1
    env.reset()
    assert env.step('look {"jar": "a"}')[0] == "no jar a", "another process, an empty pantry"
    assert env.step(call("finish", answer="one fig"))[1:3] == (0.0, True)
    env.close()
    env.close()
    assert children() == []


def test_calls_that_are_none_are_answered_and_cost_a_step(make):
    env = begun(make())
    for action, told in [
        ("", "no call of a tool"),
        ("gibberish of a model", "no call of a tool"),
        ("look [1]", "no call of a tool"),
        ('look {"jar": NaN}', "no call of a tool"),
        ("lock {}", "did you mean 'look'"),
        ("look {}", r"look takes ['jar']"),
    ]:
        observation, reward, terminated, truncated, info = env.step(action)
        assert told in observation and (reward, terminated, truncated, info) == (0.0, False, False, {"invalid": True})
    assert env.step("pid")[0].isdigit(), "the episode goes on"


def test_the_grammar_reads_what_models_write(make):
    grammar = make().grammar
    wanted = 'look {"jar": "a b"}'
    for text in (
        'look {"jar": "a b"}',
        'Thought: hm\nAction: look {"jar": "a b"}',
        'I think.\nlook {"jar": "a b"}',
        'Action: look with Action Input: {"jar": "a b"}',
        'look{"jar": "a b"}',
        'Action: look {\n "jar": "a b"\n}',
    ):
        assert grammar.parse(text).action == wanted, text
    parsed = grammar.parse('Thought: first\nput it\nAction: put {"jar": "Action: x", "what": "é"}')
    assert parsed.thought == "first\nput it" and grammar.parse(grammar.render(parsed)) == parsed
    with pytest.raises(InvalidAction):
        grammar.parse("Action: look for it")


def test_what_the_judge_says(make):
    told = []

    def check(spec, answer):
        told.append((spec["prompt"], answer))
        return {"half": 0.5, "none": None}[answer]

    world = make(reward_function=AnswerReward("submit", check=check))
    assert "submit" in [tool.name for tool in world.tools]
    assert begun(world).step(call("submit", answer="half"))[1:3] == (0.5, True)
    assert begun(world, 1).step(call("submit", answer="none"))[1] is None
    assert told == [("what is in the jar?", "half"), ("think", "none")]
    with pytest.raises(WorldError, match="the judge failed: KeyError"):
        begun(world).step(call("submit", answer="x"))
    assert AnswerReward()({"prompt": ""}, CallResult(Call("finish", {"answer": "x"}))).reward is None, (
        "not enough to compare with"
    )
    assert AnswerReward()({}, CallResult(Call("finish", {}), failed=True)) == CallReward()
    rows = [
        ({"reward": 1, "terminated": True}, CallReward(1.0, True)),
        ({"reward": True}, CallReward(None)),
        (None, CallReward(None)),
        ({"reward": None, "truncated": True}, CallReward(None, False, True)),
    ]
    assert [ReportedReward()({}, CallResult(Call("x"), "", told)) for told, _ in rows] == [
        verdict for _, verdict in rows
    ]


def test_a_finish_that_the_server_has_is_called_there(make):
    world = make([*CHILD, "hosted"])
    assert [tool.name for tool in world.tools].count("finish") == 1
    last = begun(world).step(call("finish", answer="two figs"))
    assert last[:3] == ("heard two figs", 1.0, True)


def test_a_call_that_takes_too_long(make):
    world = make(timeouts=ClientTimeouts(step_s=0.3))
    env = begun(world)
    with pytest.raises(StepTimeout):
        env.step(call("sleep", seconds="30"))
    with pytest.raises(SessionGone):
        env.step("pid")
    assert env.reset()[0] == "what is in the jar?"


def test_a_child_that_dies_tells_its_last_words(make):
    env = begun(make())
    with pytest.raises(EnvLost, match=r"lost the MCP server.*these are my last words"):
        env.step("die")
    env.reset()
    assert env.step("pid")[0].isdigit()


def test_a_server_that_fails(make):
    world = make(timeouts=ClientTimeouts(message_bytes=50_000))
    with pytest.raises(WorldError, match="division by zero"):
        begun(world).step("fail")
    with pytest.raises(WorldError, match="sent an invalid answer"):
        begun(world).step("junk")
    observation, *_, info = begun(world).step(call("long", size="60000"))
    assert len(observation) == 50_000 and info["obs_truncated"] is True


@pytest.mark.parametrize(
    ("server", "told"),
    [
        ([*CHILD, "broken"], "does not speak MCP.*It said: there is no module of jars"),
        (["/no/such/program"], "FileNotFoundError"),
        ("http://127.0.0.1:9/mcp", "does not speak MCP"),
    ],
)
def test_a_server_that_is_none(make, server, told):
    with pytest.raises(EnvLost, match=told):
        make(server)


def test_a_child_that_never_answers_is_killed(make):
    with pytest.raises(StepTimeout):
        make([*CHILD, "silent"], timeouts=ClientTimeouts(reset_s=0.5))
    assert children() == []


def test_a_child_that_will_not_go_is_killed(make):
    env = begun(make())
    (child,) = children()
    assert env.step("stay")[0] == "staying"
    env.close()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_the_end_of_the_process_is_the_end_of_its_children():
    program = (
        "import sys\n"
        "from evolvent.serve.mcp.client import McpWorld\n"
        "world = McpWorld(sys.argv[1:], tasks={'train': [{'prompt': ''}]})\n"
        "env = world.make(world.tasks('train', 'seen')[0])\n"
        "env.reset()\n"
        "print(env.step('pid')[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *CHILD], capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.returncode) == ("", 0)
    assert not psutil.pid_exists(int(done.stdout))


def test_bad_arguments(make):
    for server in ([], [""], "ftp://x", "http://user:secret@127.0.0.1/mcp"):
        with pytest.raises(ConfigError) as caught:
            make(server)
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="no tool 'restart'"):
        make(begin="restart")
    with pytest.raises(ConfigError, match="at least one"):
        make(tasks=[])


def test_without_the_sdk(monkeypatch):
    for name in [name for name in sys.modules if name == "mcp" or name.startswith("mcp.")]:
        monkeypatch.setitem(sys.modules, name, None)
    for module in ("evolvent.serve.mcp.link", "evolvent.serve.mcp.mount"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'evolvent\[mcp\]'"):
        McpWorld(CHILD, tasks=TASKS)
    with pytest.raises(MissingExtra, match=r"pip install 'evolvent\[mcp\]'"):
        McpDialect()


def test_our_own_server(make):
    local, every = Till(), list(range(8))
    tasks = {"train": [{"begin": {"index": number}} for number in every]}
    with faces(McpDialect(), capacity=32) as (address, host):
        url = f"http://{address}/mcp/till"
        world = make(url, tasks=tasks, reward_function=ReportedReward(), begin="evolvent_reset")
        assert [tool.name for tool in world.tools] == ["add", "finish"] and world.name == "evolvent/till"

        def right(world, task):
            to = [task.spec["to"] for split in ("train", "dev", "test") for task in local.tasks(split, "seen")]
            return [call("add", n=to[task.spec["begin"]["index"]]), "add", "finish {}"]

        starts = [Start(task) for task in world.tasks("train", "seen")]
        played = list(ev.collect({world.name: world}, starts, ev.Script(right), engine=None, slots=8))
        assert [t.ended_by for t in played] == ["world"] * 8, [t.error for t in played]
        assert all(t.success and t.rewards == (0.0, 0.0, 1.0) for t in played)
        assert all(t.steps[2].observation == "add needs n" for t in played)
        assert emptied(host)
        env = begun(world, 3)
        created = host.status().created
        env.reset()
        assert host.status().created == created, "the tool that begins keeps the session"
        with pytest.raises(WorldError, match="evolvent_reset failed"):
            begun(make(url, tasks={"train": [{"begin": {"index": 99}}]}, begin="evolvent_reset"))
    with pytest.raises(EnvLost):
        env.step("finish {}")


def test_a_token():
    token = "a-token-of-the-test"
    with faces(McpDialect(), access=Access(token)) as (address, _):
        with pytest.raises((EnvLost, AccessDenied)):
            McpWorld(f"http://{address}/mcp/till", tasks=TASKS)
        world = McpWorld(f"http://{address}/mcp/till", tasks=TASKS, token=token)
        assert world.name == "evolvent/till" and token not in repr(world)
        world.close()


class Bad(BaseHTTPRequestHandler):
    """A server over HTTP whose tools answer by what they are called."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            return self.out(202, b"")
        how = message["params"].get("name") if message["method"] == "tools/call" else message["method"]
        result = {}
        if how == "initialize":
            told = {"name": "bad", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": told}
        elif how == "tools/list":
            names = ("big", "packed", "html", "cut", "redirect", "wait", "other")
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
        elif how == "big":
            result = {"content": [{"type": "text", "text": "x" * 5_000_000}]}
        elif how == "packed":  # little on the way, much when it is unpacked
            body = gzip.compress(b'{"jsonrpc": "2.0", "id": 1, "result": {"text": "' + b"x" * 5_000_000 + b'"}}')
            return self.out(200, body, **{"content-encoding": "gzip"})
        elif how == "cut":
            return self.connection.shutdown(2)
        elif how == "html":
            return self.out(200, b"<html>", "text/html")
        elif how == "redirect":
            return self.out(307, b"", location="http://127.0.0.1:9/elsewhere")
        elif how == "wait":
            time.sleep(1)
        number = message["id"] if how != "other" else 999
        return self.out(200, json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode())

    def out(self, status, body, kind="application/json", **headers):
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    do_GET = do_DELETE = lambda self: self.out(405, b"")

    def log_message(self, *words):
        pass


@pytest.fixture
def bad():
    server = QuietHTTPServer(("127.0.0.1", 0), Bad)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/mcp"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("big", LimitExceeded, "at most 1000000 bytes"),
        ("packed", LimitExceeded, "the answer is compressed"),
        ("html", WorldError, "Unexpected content type"),
        ("cut", EnvLost, "is gone: got RemoteProtocolError"),
        ("redirect", WorldError, "not followed"),
        ("wait", StepTimeout, "before the deadline"),
        ("other", StepTimeout, "before the deadline"),
    ],
)
def test_a_server_with_bad_manners(make, bad, how, error, told):
    env = begun(make(bad, timeouts=ClientTimeouts(message_bytes=1_000_000, step_s=0.4)))
    with pytest.raises(error, match=told):
        env.step(how)
    assert env.reset()[0] == "what is in the jar?"


def test_a_world_of_tools_can_be_served_again(make):
    with faces(McpDialect(), worlds=(make(name="pantry"), Count())) as (address, host):
        tasks = {"train": [{"begin": {"index": 0}}]}
        again = make(
            f"http://{address}/mcp/pantry", tasks=tasks, reward_function=ReportedReward(), begin="evolvent_reset"
        )
        env = again.make(again.tasks("train", "seen")[0])
        assert env.reset()[0] == "what is in the jar?"
        assert env.step(call("put", jar="a", what="figs"))[0] == "a holds figs"
        assert env.step(call("finish", answer="two figs"))[1:3] == (1.0, True)
        env.close()
        assert emptied(host)
