"""Fault 57 at the viewer: the token opens it, nothing else does, and no address reaches a file."""

from __future__ import annotations

import re

import httpx2
import pytest
from viewed import TOKEN, viewed

from tests.view.fabricated import write_run

PATHS = (
    "/",
    "/boards",
    "/compare",
    "/pulse",
    "/health",
    "/static/viewer.js",
    "/run/0123456789ab",
    "/nowhere",
    "/enter/",
    "/enter/a-token-of-24-charactert",
    "/run/x/rows",
    "/theme",
)
REFUSED = {
    "no token": {},
    "missing or wrong token": {"Authorization": "Bearer a-token-of-24-charactert"},
    "part of it": {"Authorization": f"Bearer {TOKEN[:-1]}"},
    "in a cookie of another name": {"Cookie": f"token={TOKEN}"},
    "a torn cookie": {"Cookie": "evolvent-\x7f=;;;"},
    "foreign host": {"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"},
    "foreign origin": {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"},
    "no origin at all": {"Authorization": f"Bearer {TOKEN}", "Origin": "null"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "one", rounds=1, tasks=20)
    (folder / "secret.txt").write_text("a secret beside the runs")
    with viewed(folder) as found:
        yield found


def bare(server, **more):
    return httpx2.Client(base_url=server.url, trust_env=False, timeout=30, **more)


@pytest.mark.parametrize("why", REFUSED)
def test_every_address_is_closed(server, why):
    with bare(server, headers=REFUSED[why]) as client:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            for path in PATHS:
                answer = client.request(method, path)
                assert answer.status_code == 403, (method, path)
                assert TOKEN not in answer.text and "set-cookie" not in answer.headers


def test_the_door_gives_a_cookie_and_hides_the_token(server):
    with bare(server) as client:
        answer = client.get(server.door.removeprefix(server.url))
        assert answer.status_code == 303 and answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
        page = client.get("/")
        assert page.status_code == 200 and TOKEN not in page.text
        assert client.get("/?token=" + TOKEN, headers={"Cookie": ""}).status_code == 403, "the query is no place for it"
        own = cookie.partition(";")[0]
        for other in ('pref={"a": 1, "b": [2]}', "bare", "a[b]=c d", "x=é"):  # of other servers of this host
            for header in (f"{other}; {own}", f"{own}; {other}"):
                assert client.get("/", headers={"Cookie": header.encode()}).status_code == 200, header
        assert client.get("/", headers={"Cookie": f"x{own}"}).status_code == 403


def test_a_browser_without_the_token_gets_a_page_and_programs_json(server):
    with bare(server) as client:
        page = client.get("/runs", headers={"Accept": "text/html,application/xhtml+xml"})
        assert page.status_code == 403 and page.headers["content-type"].startswith("text/html")
        assert "evolvent view --serve" in page.text and TOKEN not in page.text
        assert page.headers["content-security-policy"] == "default-src 'none'"
        assert client.get("/runs", headers={"Accept": "application/json"}).json()["kind"] == "AccessDenied"


def test_it_only_reads(server):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/", "/boards", f"/run/{server.key('one')}"):
            assert server.client.request(method, path).status_code == 405


OUTSIDE = (
    "/run/..%2f..%2fsecret.txt",
    "/static/..%2fstyle.css",
    "/static/style.css",
    "/static/%2e%2e%2fapp.py",
    "/run/secret.txt/trees",
    "/run/0123456789ab/rows",
    "/run/%2e%2e%2f/trees",
    "/run/",
)


@pytest.mark.parametrize("path", OUTSIDE)
def test_addresses_are_no_paths(server, path):
    answer = server.client.get(path)
    assert answer.status_code == 404 and "a secret" not in answer.text


@pytest.mark.parametrize("name", ["../run.json", "../../secret", "/etc/passwd"])
@pytest.mark.parametrize("path", ["trees", "beliefs"])
def test_names_are_looked_up(server, path, name):
    text = server.get(f"/run/{server.key('one')}/{path}", name=name)
    assert "root:" not in text and "a secret" not in text


def test_what_every_answer_says(server):
    run = f"/run/{server.key('one')}"
    for path in ("/", run, "/static/viewer.js", "/static/viewer.css", "/pulse", "/nowhere", "/health"):
        headers = server.client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_no_page_names_anything_elsewhere(server):
    for path in ("/", f"/run/{server.key('one')}", "/boards", "/static/viewer.js", "/static/viewer.css"):
        text = server.client.get(path).text
        assert not re.findall(r"(?:https?:)?//[\w-]+\.\w", text), path
        assert "style=" not in text and not re.search(r"<[^>]+ on\w+=", text)


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    write_run(tmp_path / "elsewhere" / "private", rounds=1, tasks=5)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    with viewed(tmp_path / "runs") as server:
        assert "private" not in server.get("/")


@pytest.mark.parametrize(
    ("back", "to"),
    [
        ("/boards", "/boards"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nset-cookie: x=1", "/"),
    ],
)
def test_the_theme_is_kept_and_leads_nowhere_else(server, back, to):
    answer = server.client.post("/theme", data={"theme": "dark", "back": back}, headers={"Origin": server.url})
    assert (answer.status_code, answer.headers["location"]) == (303, to)
    page = server.client.get("/", headers={"Cookie": answer.headers["set-cookie"].partition(";")[0]})
    assert '<html lang="en" data-theme="dark">' in page.text
    odd = server.client.get("/", headers={"Cookie": 'evolvent-theme="><script>"'})
    assert '<html lang="en">' in odd.text
