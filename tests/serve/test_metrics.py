"""`/metrics` of both servers, read by a strict parser of the format, and by Prometheus' own where it is installed."""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext

import httpx2
import pytest

import evolvent as ev
from evolvent.serve.metrics import (
    BUCKETS_S,
    Family,
    Histogram,
    LabeledCounter,
    MeasuredApp,
    Sample,
    format_exposition,
    make_gauge,
)
from evolvent.web import build_access
from tests.serve.served import begin, serving, small_worlds
from tests.serve.small_policy import NAME, policy_server

LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>[+-]?(?:Inf|NaN|[\d.e+-]+))")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\[\\n"])*)"(?:,|$)')
TOKEN = "a-token-of-many-characters"


def labels_of(text: str) -> dict[str, str]:
    found, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, f"no label at {text[at:]!r}"
        found[match[1]] = re.sub(r"\\(.)", lambda one: {"n": "\n"}.get(one[1], one[1]), match[2])
        at = match.end()
    return found


def parsed(text: str) -> dict[str, dict[frozenset, float]]:
    """Samples by name and labels; everything that the format asks for is asserted."""
    assert text.endswith("\n") and "\r" not in text
    samples: dict[str, dict[frozenset, float]] = {}
    kinds: dict[str, str] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in kinds, "a family comes once"
            continue
        if line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert name == family and kind in ("counter", "gauge", "histogram")
            assert (kind == "counter") == name.endswith("_total")
            kinds[name] = kind
            continue
        match = LINE.fullmatch(line)
        assert match, line
        ending = match["name"].removeprefix(family)
        assert match["name"].startswith(family)
        assert ending in (("_bucket", "_sum", "_count") if kinds[family] == "histogram" else ("",))
        key = frozenset(labels_of(match["labels"] or "").items())
        rows = samples.setdefault(match["name"], {})
        assert key not in rows, "a line comes once"
        rows[key] = float(match["value"])
    for family in (name for name, kind in kinds.items() if kind == "histogram"):
        whole_histogram(samples, family)
    return samples


def whole_histogram(samples: dict[str, dict[frozenset, float]], family: str) -> None:
    """Buckets go up to infinity and never down; the last is the count."""
    for key, count in samples.get(f"{family}_count", {}).items():
        own = sorted(
            (float(dict(labels)["le"]), value) for labels, value in samples[f"{family}_bucket"].items() if key < labels
        )
        assert [end for end, _ in own] == [*BUCKETS_S, float("inf")]
        values = [value for _, value in own]
        assert values == sorted(values) and values[-1] == count
        assert key in samples[f"{family}_sum"]


def scraped(client) -> dict[str, dict[frozenset, float]]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parsed(answer.text)


def value(samples, name: str, **labels: str) -> float:
    return samples.get(name, {}).get(frozenset(labels.items()), 0.0)


def test_the_text_is_that_of_the_format():
    counts = LabeledCounter("calls_total", "Calls of\nall \\kinds.", "kind")
    counts.add('a "b"\\\n')
    counts.add('a "b"\\\n', amount=2)
    seconds = Histogram("took_seconds", "How long.", "call")
    for one in (0.00005, 0.0001, 0.3, 99.0):
        seconds.observe(one, "x")
    text = format_exposition([counts.family(), make_gauge("free", "Free.", 0.5), seconds.family()]).decode()
    assert text.startswith("# HELP calls_total Calls of\\nall \\\\kinds.\n# TYPE calls_total counter\n")
    assert 'calls_total{kind="a \\"b\\"\\\\\\n"} 3\n' in text
    assert "# TYPE free gauge\nfree 0.5\n" in text
    assert 'took_seconds_bucket{call="x",le="0.0001"} 2\n' in text, "an upper end belongs to its bucket"
    assert 'took_seconds_bucket{call="x",le="0.5"} 3\n' in text and 'le="60"} 3\n' in text and 'le="+Inf"} 4\n' in text
    assert parsed(text)["calls_total"] == {frozenset({("kind", 'a "b"\\\n')}): 3.0}


def test_prometheus_reads_it_alike():
    prometheus = pytest.importorskip("prometheus_client.parser")
    with serving() as server, server.client() as client:
        begin(client)
        text = client.get("/metrics").text
    theirs = {
        (one.name, frozenset(one.labels.items())): one.value
        for family in prometheus.text_string_to_metric_families(text)
        for one in family.samples
    }
    ours = {(name, labels): number for name, rows in parsed(text).items() for labels, number in rows.items()}
    assert theirs == ours and len(ours) > 30


@pytest.mark.parametrize("wrong", [Family("x", "gauge", "", (Sample(1.0), Sample(2.0))), make_gauge("a b", "", 1.0)])
def test_the_parser_is_strict(wrong):
    with pytest.raises(AssertionError):
        parsed(format_exposition([wrong]).decode())


def test_the_worlds_server_counts_what_is_done_to_it():
    with serving(small_worlds(["echo"]), capacity=2) as server, server.client() as client:
        session = begin(client)
        for number in range(3):
            client.post(f"/v1/sessions/{session}/step", json={"action": "hello", "step": number})
        assert client.post(f"/v1/sessions/{session}/step", json={"action": "hello", "step": 7}).status_code == 409
        begin(client)
        found = scraped(client)
        assert value(found, "evolvent_sessions_open", world="echo") == 2
        assert value(found, "evolvent_sessions_capacity") == 2
        assert value(found, "evolvent_sessions_created_total") == 2
        assert value(found, "evolvent_steps_total") == 3
        assert value(found, "evolvent_call_seconds_count", call="step") == 4
        assert value(found, "evolvent_call_seconds_count", call="reset") == 2
        assert value(found, "evolvent_errors_total", call="step", kind="WrongStep") == 1
        assert value(found, "evolvent_http_requests_total", face="v1", method="POST", status="409") == 1
        assert client.get("/health").json()["steps"] == 3, "both tell the same"
        client.get("/no/such/path")
        later = scraped(client)
        assert value(later, "evolvent_http_requests_total", face="other", method="GET", status="404") == 1
        assert value(later, "evolvent_http_requests_total", face="metrics", method="GET", status="200") == 1
        refused = client.post("/metrics")
        assert refused.status_code == 405 and refused.json()["expected"] == "GET, HEAD"


def test_whoever_may_not_call_learns_nothing_and_is_counted():
    with serving(small_worlds(["echo"]), access=build_access("127.0.0.1", token=TOKEN)) as server:
        with server.client() as stranger, server.client(headers={"authorization": f"Bearer {TOKEN}"}) as friend:
            assert stranger.get("/metrics").status_code == 403
            assert stranger.get("/metrics", headers={"host": "evil.example"}).status_code == 403
            found = scraped(friend)
            assert value(found, "evolvent_http_requests_total", face="metrics", method="GET", status="403") == 2
            assert TOKEN not in friend.get("/metrics").text


def test_no_client_makes_labels():
    """Names that clients choose (paths, methods, worlds, sessions) could fill a server's memory."""
    with serving(small_worlds(["echo"])) as server, server.client() as client:
        lines = []
        for number in range(30):
            client.get(f"/path{number}/x")
            client.request(f"ODD{number}", "/health")
            client.post("/v1/sessions", json={"world": f"w{number}", "task": "t"})
            lines.append(len(client.get("/metrics").text.splitlines()))
        after = scraped(client)
        assert lines[1:] == [lines[1]] * 29, "what is asked under new names makes no new lines"
        assert value(after, "evolvent_http_requests_total", face="other", method="GET", status="404") == 30


@pytest.mark.parametrize(("path", "raises", "status"), [("*", False, "200"), ("/v1/x", True, "500")])
def test_requests_that_are_unlike_others(path, raises, status):
    async def app(scope, receive, send):
        if raises:
            raise RuntimeError("a defect")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        return None

    measured = MeasuredApp(app, ["v1"])
    with pytest.raises(RuntimeError) if raises else nullcontext():
        asyncio.run(measured({"type": "http", "path": path, "method": "OPTIONS"}, None, send))
    (sample,) = measured.families()[0].samples
    assert dict(sample.labels) == {"face": "v1" if raises else "other", "method": "OPTIONS", "status": status}


def test_the_policy_server_counts_tokens_and_errors():
    policy = ev.tiny_policy(["go", "left"], context=64, seed=1)
    with policy_server(policy, access=build_access("127.0.0.1", token=TOKEN)) as served:
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(
            base_url=served.url.removesuffix("/v1"), trust_env=False, timeout=60, headers=headers
        ) as client:
            body = {"model": NAME, "messages": [{"role": "user", "content": "go left"}], "max_tokens": 5}
            written = client.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"]
            assert client.post("/v1/chat/completions", json=body | {"model": "other"}).status_code == 404
            found = scraped(client)
        assert value(found, "evolvent_tokens_generated_total") == written > 0
        assert value(found, "evolvent_tokens_computed_total") >= written
        assert value(found, "evolvent_requests_open") == value(found, "evolvent_engine_queue") == 0
        assert value(found, "evolvent_errors_total", kind="NotFound") == 1
        assert value(found, "evolvent_http_request_seconds_count", face="v1") == 2
        with httpx2.Client(base_url=served.url.removesuffix("/v1"), trust_env=False, timeout=60) as stranger:
            assert stranger.get("/metrics").status_code == 401
