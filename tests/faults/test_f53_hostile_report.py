"""Fault 53: a report fed scripts, links, direction overrides and remote pictures is inert text in a real browser.

A server counts requests. First the browser is shown to run the very same text on a page without protection, so that a
browser that runs nothing cannot pass for a safe report.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest

from evolvent.view import report
from tests.http_server import QuietHTTPServer

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--virtual-time-budget=2000",
)


@contextmanager
def counting_server() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine and the paths that were asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    server = QuietHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attacks(server: str) -> list[str]:
    return [
        f"<script>document.title='owned';fetch('{server}/script')</script>",
        f"</script></style></title></textarea><script>document.title='owned';fetch('{server}/close')</script>",
        f"<img src='{server}/img.png' onerror=\"document.title='owned'\">",
        f"\"><svg onload=\"document.title='owned';fetch('{server}/svg')\">",
        f"' autofocus onfocus='document.title=1' style='background:url({server}/style.png)",
        f"<link rel=stylesheet href={server}/a.css><style>@import '{server}/b.css'</style>",
        f"<meta http-equiv=refresh content='0;url={server}/refresh'><base href={server}/>",
        f"<iframe src={server}/frame></iframe><object data={server}/object></object>",
        f"[x](javascript:alert(1)) ![y]({server}/markdown.png) {server}/bare <a href=javascript:alert(1)>z</a>",
        "{{ 7 * 191 }} {% for x in range(9) %}{% endfor %} ${7 * 191}",
        "\u202egnp.exe \u2066isolate \u200bzero \ufeff \x00 \x1b[31m \x7f \ud800 ]]> <!-- --><![CDATA[",
    ]


def hostile_run(folder: Path, texts: list[str]) -> Path:
    """A run in which every text of every file is an attack: all of them at once, or each in its turn."""
    every = " ".join(texts)
    arms = ("base", "evolve", "control")
    outcomes = [[f"t{k}", texts[k % len(texts)], k % 2] for k in range(22)]
    rows = [
        {
            "stage": every,
            "arm": arm,
            "round": int(arm != "base"),
            "world": world,
            "tier": every,
            "split": every,
            "n": 22,
            "mean": 0.5,
            "low": 0.3,
            "high": 0.7,
            "errors": int(world == texts[3]),
            "generated": 5,
            "computed": 9,
            "outcomes": outcomes,
        }
        for arm in (*arms, every)
        for world in texts
    ]
    steps = [{"observation": text, "action": text, "reward": 1, "invalid": True, "logprob": -1.0} for text in texts]
    tokens = [{"text": text, "sampled": True, "logprob": -2.0} for text in texts]
    examples = [
        {
            "task": world,
            "world": world,
            "tier": every,
            "kind": every,
            "arm": arm,
            "round": 1,
            "success": arm == "evolve",
            "ended_by": every,
            "instructions": every,
            "steps": steps,
            "final_observation": every,
            "tokens": tokens,
        }
        for arm in arms
        for world in texts
    ]
    stages = [
        {
            "index": k,
            "name": text,
            "verb": text,
            "arm": text,
            "round": 1,
            "seconds": 2.0,
            "cpu_s": 1.0,
            "counts": {text: 3},
            "result": {text: 4},
        }
        for k, text in enumerate(texts)
    ]
    metrics = [
        {"time_s": k, "stage": text, "arm": text, "kind": "fit", "step": k, "loss": 1.0, "tokens_per_s": 2}
        for k, text in enumerate(texts)
    ]
    info = {
        "method": every,
        "name": every,
        "seed": every,
        "created": every,
        "state": every,
        "command": texts,
        "arms": ["evolve", "control"],
        "versions": {text: text for text in texts},
        "config": {text: {text: texts} for text in texts},
    }
    folder.mkdir()
    for name, lines in (("results", rows), ("stages", stages), ("metrics", metrics)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "examples.json").write_text(json.dumps(examples))
    (folder / "floors.json").write_text(json.dumps({world: {every: {every: 0.5}} for world in texts}))
    return folder


def opened(chromium: str, file: Path, profile: Path) -> str:
    """The document as the browser holds it after loading."""
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode("utf-8")


class Dom(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.browser
def test_f53_the_same_text_does_harm_where_nothing_protects(chromium: str, tmp_path: Path) -> None:
    with counting_server() as (server, asked):
        naked = tmp_path / "naked.html"
        naked.write_bytes(("<!doctype html><body>" + " ".join(attacks(server)[:4])).encode("utf-8", "replace"))
        dom = opened(chromium, naked, tmp_path / "profile")
    assert "owned" in dom
    assert any("/img.png" in path for path in asked)
    assert any("/script" in path for path in asked)


@pytest.mark.browser
def test_f53_a_hostile_run_is_inert_text(chromium: str, tmp_path: Path) -> None:
    with counting_server() as (server, asked):
        texts = attacks(server)
        to = tmp_path / "report.html"
        report(hostile_run(tmp_path / "run", texts), to)
        dom = Dom(opened(chromium, to, tmp_path / "profile"))
    assert asked == []
    forbidden = {"script", "img", "iframe", "object", "link", "base", "form", "image", "foreignobject", "textarea"}
    assert not forbidden & set(dom.tags)
    assert dom.tags.count("style") == 1
    assert not [name for name, _ in dom.attributes if name.startswith("on")]
    addresses = [
        value or "" for name, value in dom.attributes if name in ("href", "src", "action", "data", "xlink:href")
    ]
    assert addresses
    assert all(address.startswith("#") for address in addresses)
    assert "<script>document.title='owned'" in dom.text  # shown, not run
    assert "{{ 7 * 191 }}" in dom.text
    assert "1337" not in dom.text
    assert "U+202E" in dom.text
    for hidden in "\u202e\u2066\u200b\ufeff\x00\x1b\x7f":
        assert hidden not in dom.text
        assert not any(hidden in (value or "") for _, value in dom.attributes)
