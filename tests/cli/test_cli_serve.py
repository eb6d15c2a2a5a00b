"""`evolvent serve` as users run it: what it says, whom it lets in, how it ends."""

from __future__ import annotations

import io
import json
import signal

import httpx2
import psutil
import pytest
from websockets.sync.client import connect

from evolvent.cli.serve import COMMAND, DIALECTS, ServeConfig, run
from evolvent.cli.terminal.console import make_console
from evolvent.config import list_settings
from evolvent.errors import ConfigError
from tests.serve.command import command, expect_output
from tests.serve.served import until

SECRET = "a-token-of-24-characters"


def client_of(server, **more):
    return httpx2.Client(base_url=server.url, trust_env=False, verify=False, timeout=30, **more)


def mistakes(*words):
    with pytest.raises(ConfigError) as caught:
        run(words, make_console(io.StringIO(), {}))
    return [str(problem) for problem in caught.value.problems]


def test_it_says_what_is_served_and_how_to_connect():
    with command("maze,lookup", "--faces", "native") as server, client_of(server) as client:
        serving = f"serving maze, lookup at {server.url} (this process, 1024 sessions)"
        expect_output(server, serving, f'native    RemoteWorld("{server.url}/v1/worlds/maze")')
        assert client.get("/v1").json()["worlds"] == ["maze", "lookup"]
        assert client.get("/agentgym/maze/").status_code == 404, "a face that was not asked for"
    assert "Traceback" not in server.output and "GET" not in server.output, "requests are not logged"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_good_order_with_its_workers(number):
    with command("maze", "--workers", "2", "--faces", "native") as server, client_of(server) as client:
        expect_output(server, "(worker processes: 2, 1024 sessions)")
        workers = psutil.Process(server.process.pid).children(recursive=True)
        assert len(workers) == 2
        task = client.get("/v1/worlds/maze/tasks?split=test&tier=seen&limit=1").json()["tasks"][0]
        session = client.post("/v1/sessions", json={"world": "maze", "task": task["id"]}).json()["session"]
        with connect(server.url.replace("http", "ws") + "/v1/ws", proxy=None) as link:
            link.send(json.dumps({"request_id": 1, "op": "step", "session": session, "action": "move up"}))
            assert json.loads(link.recv(timeout=60))["ok"]["step"] == 0
            server.process.send_signal(number)
            assert server.process.wait(20) == 128 + number
        until(lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers))
    assert "Traceback" not in server.output


def test_the_token_is_asked_for_and_never_shown(tmp_path):
    file = tmp_path / "token"
    file.write_text(SECRET + "\n", encoding="utf-8")
    for words, env in ((["--token-file", file], ""), ([], SECRET)):
        with command("maze", "--faces", "native", "--log-requests", *words, token=env) as server:
            assert SECRET not in " ".join(psutil.Process(server.process.pid).cmdline())
            with client_of(server) as client:
                assert client.get("/v1").status_code == 403
            with client_of(server, headers={"Authorization": f"Bearer {SECRET}"}) as client:
                assert client.get("/v1").status_code == 200
        assert SECRET not in server.output and "must bear the token" in server.output
        assert '"GET /v1 HTTP/1.1" 403' in server.output


def test_every_mistake_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv("EVOLVENT_TOKEN", raising=False)
    assert mistakes("mase", "--port", "99999", "--wrokers", "2", "--idle_s", "0") == [
        "--wrokers: unknown key 'wrokers' (did you mean 'workers'?)",
        "port: got '99999', expected int >= 0 and <= 65535",
        "idle_s: got '0', expected float > 0",
        "worlds: unknown world 'mase' (did you mean 'maze'?)",
    ]
    found = mistakes("maze", "--host", "0.0.0.0", "--faces", "natve")
    assert len(found) == 2 and "no token is set" in found[0] and "did you mean 'native'?" in found[1]
    missing = tmp_path / "none"
    assert mistakes("maze", "--token-file", str(missing)) == [
        f"token_file: {missing} cannot be read: No such file or directory"
    ]
    assert "double_t" in mistakes("maze:triangle", "--port", "0", "--faces", "native")[0]


def test_every_setting_is_described_and_every_face_named():
    assert all(knob.description for knob in list_settings(ServeConfig))
    assert COMMAND.main_field == "worlds" and list(DIALECTS) == ["native", "agentgym", "openenv", "mcp"]


def test_all_faces_that_are_installed_are_served():
    with command("maze") as server, client_of(server) as client:
        expect_output(server, *(f"  {name:9} " for name in DIALECTS))
        assert client.get("/v1").status_code == 200
        assert client.get("/health").json()["sessions"] == {"maze": 0}
