"""Fault 55: keys in the environment, in headers, addresses and the errors of others: no file and no log holds one.

Keys are planted wherever a run, a server and an endpoint's client could come by one, and everything that they wrote is
searched, compressed or not: every file, standard output and standard error.
"""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pyarrow.parquet as pq
import pytest
from pydantic import Field, SecretStr

from evolvent.config import Config, as_dict, redact, resolve, to_toml
from evolvent.engine.endpoint import Endpoint
from evolvent.errors import EndpointError, EvolventError
from evolvent.logs import find_secrets, hide_secrets
from tests.serve.command import command as serving
from tests.serve.small_policy import completion, scripted

KEY, TOKEN, PASSWORD = "sk-planted-key-0123456789", "planted-token-0123456789", "planted-password-42"
PLANTED = (KEY, TOKEN, PASSWORD)


def found_in(folder: Path, *texts: str) -> list[str]:
    """Where a planted key stands; Parquet is read as what it holds."""
    wrong = [f"text {number}" for number, text in enumerate(texts) if any(one in text for one in PLANTED)]
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes().decode("latin-1")
            if path.suffix == ".parquet":
                data += json.dumps(pq.read_table(path).to_pylist(), default=str)
            wrong += [str(path) for one in PLANTED if one in data]
    return wrong


def test_the_search_finds_what_is_there(tmp_path):
    (tmp_path / "a").write_text(f"x{KEY}y", encoding="utf-8")
    assert found_in(tmp_path, "", TOKEN) == ["text 1", str(tmp_path / "a")]


def echoing(number, path, body):
    """An endpoint that repeats its caller's key in what it says: in errors first, then in a reply."""
    if path.endswith("/models"):
        return 200, {}, {"data": [{"id": "m"}]}
    if number % 3 == 1:
        return 500, {}, {"error": {"message": f"bad header: Authorization: Bearer {KEY}"}}
    if number % 3 == 2:
        return 400, {}, {"error": {"message": f"no access with {KEY}"}}
    return 200, {}, completion("look")


def test_a_run_with_an_endpoint(command, tmp_path):
    with scripted(echoing) as (url, script):
        words = (
            "collect",
            "--worlds",
            "lookup",
            "--limit",
            "6",
            "--agent",
            "endpoint",
            "--endpoint",
            url,
            "--model",
            "m",
            "--to",
            "run",
            "--log-json",
        )
        done = command(*words, cwd=tmp_path, OPENAI_API_KEY=KEY, EVOLVENT_TOKEN=TOKEN)
        assert any(headers.get("authorization") == f"Bearer {KEY}" for _, headers, _ in script.asked), "it was sent"
        assert done.returncode == 1 and "not scored" in done.stdout, done.stderr
        again = command("collect", "--resume", "run", "--debug", cwd=tmp_path, OPENAI_API_KEY=KEY)
        shown = command("runs", "export", "run", "--to", "out.parquet", cwd=tmp_path)
    assert (tmp_path / "run" / "config.toml").read_text(encoding="utf-8").count('key_env = "OPENAI_API_KEY"') == 1
    every = (done.stdout, done.stderr, again.stdout, again.stderr, shown.stdout, shown.stderr)
    assert not found_in(tmp_path, *every)


@pytest.mark.parametrize("form", ["http://user:{}@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?key={}"])
def test_an_address_with_a_login(command, tmp_path, form):
    address = form.format(PASSWORD)
    words = ("collect", "--worlds", "lookup", "--limit", "2", "--agent", "endpoint", "--model", "m", "--endpoint")
    done = command(*words, address, "--to", "run", "--debug", cwd=tmp_path)
    assert done.returncode in (1, 2) and "Traceback" in done.stderr
    assert not found_in(tmp_path, done.stdout, done.stderr)


def test_an_endpoint_client_tells_its_errors_without_the_key():
    for status in (400, 401, 500):
        answer = (status, {"location": KEY}, {"error": {"message": f"{KEY} is wrong", "code": KEY}})
        with scripted(lambda *_, answer=answer: answer) as (url, _):
            with Endpoint(url, "m", key=SecretStr(KEY), timeout_s=0.3) as endpoint:
                with pytest.raises(EndpointError) as caught:
                    endpoint.models()
        seen: BaseException | None = caught.value
        while seen is not None:
            assert KEY not in str(seen) and KEY not in repr(seen)
            seen = seen.__cause__
        assert KEY not in repr(endpoint)


def test_a_server_and_its_workers(tmp_path):
    with serving("lookup", "--workers", "1", "--log_requests", "true", "--log-json", token=TOKEN) as server:
        with httpx2.Client(base_url=server.url, trust_env=False, timeout=30) as client:
            bearer = {"authorization": f"Bearer {TOKEN}"}
            assert client.get("/health", headers=bearer).status_code == 200
            for path in (f"/?token={TOKEN}", f"/{TOKEN}", f"/metrics?key={PASSWORD}", f"/v1?api_key={TOKEN}"):
                client.get(path)
                client.get(path, headers=bearer)
            client.get("/", headers={"authorization": f"Basic {TOKEN}"})
            client.post("/v1/sessions", headers=bearer, json={"world": TOKEN, "task": "t"})
            answers = client.get("/metrics", headers=bearer).text + client.get("/", headers=bearer).text
    lines = [line for line in server.output.splitlines() if line.startswith("{")]
    assert len([line for line in lines if json.loads(line)["logger"] == "uvicorn.access"]) >= 10, "requests were logged"
    assert not found_in(tmp_path, server.output, answers)


class Job(Config):
    api_key: str = Field(default="", description="a secret")
    key_env: str = Field(default="OPENAI_API_KEY", description="the name of a variable")
    endpoint: str = Field(default="", description="an address")


def test_a_configuration_as_it_is_stored(tmp_path):
    job = resolve(Job, overrides=["--api_key", KEY, "--endpoint", f"https://me:{PASSWORD}@host/v1"])
    (tmp_path / "config.toml").write_text(to_toml(job), encoding="utf-8")
    assert not found_in(tmp_path, str(as_dict(job)), str(redact({"headers": {"Authorization": f"Bearer {TOKEN}"}})))
    again = resolve(Job, file=tmp_path / "config.toml")
    assert again.key_env == "OPENAI_API_KEY", "where a key is found is no secret: a resumed run must find it again"


LINES = [
    f"Authorization: Bearer {TOKEN}",
    f"'authorization': 'Basic {TOKEN}'",
    f"https://me:{PASSWORD}@host/",
    f"key {KEY}",
    f"GET /x?token={TOKEN}&y=1",
    f"{EvolventError('it failed', value=KEY)}",
    f"a\nb {KEY}\nc",
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_a_log(line):
    assert not [one for one in PLANTED if one in hide_secrets(line)]
    plain = "nothing secret: basic settings, a bearer of news, max_tokens=7, the key is under the mat"
    assert hide_secrets(plain) == plain


def test_what_the_environment_calls_a_secret_is_one():
    found = find_secrets(
        {"MY_API_KEY": PASSWORD, "HF_TOKEN": TOKEN, "KEY": "yes", "HOME": "home-of-somebody", "K_FILE": "x"}
    )
    assert found == {PASSWORD, TOKEN} and hide_secrets(f"<{PASSWORD}>", found) == "<<redacted>>"
