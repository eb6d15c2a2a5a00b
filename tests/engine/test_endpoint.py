"""A client of OpenAI-compatible endpoints against a scripted server: requests, retries, deadlines, typed errors."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest
from pydantic import SecretStr

import evolvent.engine.endpoint as endpoint_module
from evolvent.engine.asks import GREEDY, Sampling
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.replies import read_reply
from evolvent.errors import ConfigError, ContextOverflow, EndpointError, TokensMissing
from evolvent.messages import Message
from tests.serve.small_policy import completion, scripted

HELLO = [Message("system", "be brief"), Message("user", "hello")]
KEY = "sk-very-secret-0123456789"


def say(endpoint, **more):
    return endpoint.chat(HELLO, **({"sampling": GREEDY, "max_tokens": 7} | more))


def good(number, path, body):
    return 200, {}, completion("hi")


def test_what_is_asked_and_what_comes_back():
    with scripted(good) as (url, script), Endpoint(url, "m", key=SecretStr(KEY)) as endpoint:
        reply = say(endpoint, seed=11, session="s1")
        assert (reply.text, reply.stop, reply.model, reply.fingerprint, reply.tokens) == ("hi", "stop", "m", "fp", None)
        ((path, headers, body),) = script.asked
        assert path == "/v1/chat/completions"
        assert body == {
            "model": "m",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
            "temperature": 0.0,
            "max_tokens": 7,
            "seed": 11,
        }
        assert headers["authorization"] == f"Bearer {KEY}" and headers["x-session-id"] == "s1"
        assert (endpoint.usage.requests, endpoint.usage.prompt, endpoint.usage.completion) == (1, 3, 2)


def test_only_what_was_chosen_is_said():
    settings = Sampling(temperature=0.7, top_k=5, top_p=0.9)
    with scripted(good) as (url, script):
        extra = {"seed": None, "max_tokens": None, "max_completion_tokens": 9, "reasoning_effort": "low"}
        with Endpoint(url, "m", tokens=True, extra=extra) as endpoint:
            reply = say(endpoint, sampling=settings, stop=["END"], seed=3)
    body = script.asked[0][2]
    assert {key: body[key] for key in body if key not in ("messages", "model")} == {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "stop": ["END"],
        "logprobs": True,
        "return_token_ids": True,
        "max_completion_tokens": 9,
        "reasoning_effort": "low",
    }
    assert reply.tokens.prompt.tolist() == [1, 2, 3] and reply.tokens.ids.tolist() == [5, 6]
    assert reply.tokens.logprobs.tolist() == [-0.5, -0.25] and reply.tokens.logprobs.dtype == np.float32


def test_a_completion_from_token_ids():
    row = {
        "choices": [
            {
                "text": "hi",
                "token_ids": [8],
                "prompt_token_ids": [1, 2],
                "finish_reason": "length",
                "logprobs": {"token_logprobs": [-1.5]},
            }
        ]
    }
    with scripted(lambda *asked: (200, {}, row)) as (url, script), Endpoint(url, "m") as endpoint:
        reply = endpoint.complete(np.array([1, 2], np.int32), sampling=GREEDY, max_tokens=1)
    assert (reply.stop, reply.tokens.ids.tolist(), reply.tokens.logprobs.tolist()) == ("length", [8], [-1.5])
    assert script.asked[0][0] == "/v1/completions" and script.asked[0][2]["prompt"] == [1, 2]


FAILURES = {
    "busy": (503, {"retry-after": "0"}, {"error": {"message": "busy"}}),
    "rate": (429, {}, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}),
    "gateway": (502, {}, b"<html>bad gateway</html>"),
    "cut": None,
    "told in a good answer": (200, {}, {"error": {"message": "upstream failed", "code": 502}}),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_what_may_pass_is_tried_again(failure):
    def answer(number, path, body):
        return FAILURES[failure] if number < 2 else good(number, path, body)

    with scripted(answer) as (url, script), Endpoint(url, "m", timeout_s=30) as endpoint:
        assert say(endpoint, seed=4).text == "hi"
        assert [body for _, _, body in script.asked] == [script.asked[0][2]] * 3
        assert (endpoint.usage.requests, endpoint.usage.retries) == (1, 2)


def test_tries_end_at_the_deadline_with_the_last_failure():
    with scripted(lambda *asked: FAILURES["busy"]) as (url, script), Endpoint(url, "m", timeout_s=0.6) as endpoint:
        with pytest.raises(EndpointError, match=r"got 503.*The endpoint says: 'busy'") as failed:
            say(endpoint)
    assert failed.value.value == 503 and len(script.asked) >= 2


def test_outage_is_told_once_while_it_lasts(monkeypatch, caplog):
    monkeypatch.setattr(endpoint_module, "_NOTICE_S", 0.0)
    is_up: list[bool] = []

    def answer(number, path, body):
        return good(number, path, body) if is_up else FAILURES["busy"]

    def notices():
        return [record.getMessage() for record in caplog.records if "tried again for up to" in record.getMessage()]

    with scripted(answer) as (url, _), Endpoint(url, "m", timeout_s=0.6) as endpoint:
        for _ in range(2):
            with pytest.raises(EndpointError):
                say(endpoint)
        (notice,) = notices()
        assert "503" in notice and "busy" in notice
        is_up.append(True)
        say(endpoint)
        is_up.clear()
        with pytest.raises(EndpointError):
            say(endpoint)
        assert len(notices()) == 2
    monkeypatch.setattr(endpoint_module, "_NOTICE_S", 60.0)
    caplog.clear()
    with scripted(answer) as (url, _), Endpoint(url, "m", timeout_s=0.3) as endpoint, pytest.raises(EndpointError):
        say(endpoint)
    assert not notices()


def test_a_try_that_the_deadline_cuts_hides_no_failure_before_it():
    def answer(number, path, body):
        if number:
            time.sleep(1.5)  # longer than there is
        return FAILURES["busy"]

    with scripted(answer) as (url, script), Endpoint(url, "m", timeout_s=0.8) as endpoint:
        with pytest.raises(EndpointError, match=r"got 503.*The endpoint says: 'busy'"):
            say(endpoint)
    assert len(script.asked) == 2


def test_nobody_there_is_said_so():
    with scripted(good) as (url, _):
        pass
    with Endpoint(url, "m", timeout_s=0.4) as endpoint, pytest.raises(EndpointError, match=r"no answer.*ConnectError"):
        say(endpoint)


LATER = [
    "3600",
    lambda: format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True),
]


@pytest.mark.parametrize("after", LATER, ids=["seconds", "date"])
def test_a_rest_longer_than_the_deadline_is_not_waited_for(after):
    header = {"retry-after": after if isinstance(after, str) else after()}
    with scripted(lambda *asked: (429, header, {})) as (url, script), Endpoint(url, "m", timeout_s=20) as endpoint:
        with pytest.raises(EndpointError):
            say(endpoint)
    assert len(script.asked) == 1


LASTING = {
    "key": (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}, "Check the key"),
    "model": (404, {"error": {"message": "no such model", "code": "model_not_found"}}, "Check the address"),
    "field": (400, {"error": {"message": "Unrecognized request argument: return_token_ids"}}, "return_token_ids"),
    "quota": (429, {"error": {"message": "pay first", "code": "insufficient_quota"}}, "pay first"),
    "folder": (403, {"error": {"message": "outside", "code": "unsafe_path"}}, "got 403. The endpoint says: 'outside'"),
    "page": (403, b"<html>go away</html>", "go away"),
}


@pytest.mark.parametrize("case", LASTING)
def test_what_lasts_is_not_tried_again(case):
    status, row, said = LASTING[case]
    with scripted(lambda *asked: (status, {}, row)) as (url, script):
        with Endpoint(url, "m", key=SecretStr(KEY)) as endpoint, pytest.raises(EndpointError, match=said) as failed:
            say(endpoint)
    assert failed.value.value == status and len(script.asked) == 1


def test_the_key_is_in_no_text(caplog):
    caplog.set_level(logging.DEBUG)
    with scripted(lambda *asked: (401, {}, {"error": {"message": f"bad key {KEY}"}})) as (url, _):
        with Endpoint(url, "m", key=SecretStr(KEY)) as endpoint:
            with pytest.raises(EndpointError) as failed:
                say(endpoint)
            shown = [repr(endpoint), str(endpoint), str(failed.value), repr(failed.value), caplog.text]
    assert "***" in shown[2]
    assert not [text for text in shown if KEY in text or KEY[:12] in text]


OVERFLOWS = [
    (400, {"message": "too long", "code": "context_length_exceeded"}),
    (400, {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000", "code": 400}),
    (400, {"message": "The input (5000 tokens) is longer than the model's context length (4096 tokens)."}),
    (400, {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}),
]


@pytest.mark.parametrize(("status", "error"), OVERFLOWS)
def test_a_conversation_that_is_too_long_has_its_own_error(status, error):
    with scripted(lambda *asked: (status, {}, {"error": error})) as (url, script), Endpoint(url, "m") as endpoint:
        with pytest.raises(ContextOverflow):
            say(endpoint)
    assert len(script.asked) == 1


BAD_ANSWERS = {
    "the answer is not JSON": (b"hello", "the answer is not JSON"),
    "too deep": (b"[" * 10_000, "the answer is not JSON"),
    "no choices": ({"object": "chat.completion"}, "the answer has no choice"),
    "empty choices": ({"choices": []}, "the answer has no choice"),
    "no text": ({"choices": [{"message": {"content": 7}}]}, "the choice has no text"),
    "filtered": ({"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}, "filter"),
    "too large": (b'"' + b"x" * (17 << 20), "too large"),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_an_answer_that_is_none_is_typed(case):
    data, said = BAD_ANSWERS[case]
    with scripted(lambda *asked: (200, {}, data)) as (url, _), Endpoint(url, "m") as endpoint:
        with pytest.raises(EndpointError, match=said):
            say(endpoint)


def test_a_redirect_is_not_followed():
    with scripted(lambda *asked: (307, {"location": "http://elsewhere/"}, {})) as (url, script):
        with Endpoint(url, "m") as endpoint, pytest.raises(EndpointError, match="redirect to 'http://elsewhere/'"):
            say(endpoint)
    assert len(script.asked) == 1


def _late(release):
    release.wait(30)
    yield b"{}"


def _short(release):
    yield b"{"
    release.wait(30)


def _trickling(release):
    while not release.wait(0.02):
        yield b" "


@pytest.mark.parametrize("manner", [_late, _short, _trickling])
def test_an_answer_that_does_not_end_meets_the_deadline(manner):
    release = threading.Event()
    endless = {"content-length": "1000000"}
    with scripted(lambda *asked: (200, endless, manner(release))) as (url, _), Endpoint(url, "m", timeout_s=0.3) as one:
        with pytest.raises(EndpointError, match=r"before the deadline: got 0\.3 s"):
            say(one)
        release.set()


def test_thoughts_go_by_two_names_and_halves_of_characters_are_replaced():
    message = {"content": "a\ud800b", "reasoning": " because "}
    row = {"choices": [{"message": message, "finish_reason": "length"}]}
    reply = read_reply(json.loads(json.dumps(row)), chat=True, tokens=False, request_name="here")
    assert (reply.text, reply.thought, reply.stop) == ("a\ufffdb", "because", "length")
    message["reasoning_content"] = "older"
    assert read_reply(row, chat=True, tokens=False, request_name="here").thought == "older"
    quiet = {"choices": [{"message": {"content": None}}]}
    assert read_reply(quiet, chat=True, tokens=False, request_name="here").text == ""


@pytest.mark.parametrize(("fingerprint", "version"), [("evolvent-v12-0af3", 12), ("fp_44709d6fcb", 0), (None, 0)])
def test_the_version_is_read_from_a_fingerprint_of_ours(fingerprint, version):
    row = completion("hi", system_fingerprint=fingerprint)
    assert read_reply(row, chat=True, tokens=True, request_name="here").version == version


@pytest.mark.parametrize("value", [0.1, None, "x", True, float("nan"), float("-inf"), -1e300, -(10**400)])
def test_log_probabilities_that_are_none_are_missing(value):
    with pytest.raises(TokensMissing, match="log-prob"):
        read_reply(completion("hi", logprobs=(-0.5, value)), chat=True, tokens=True, request_name="here")


def test_many_threads_share_one_endpoint():
    together = threading.Barrier(8)

    def answer(number, path, body):
        together.wait(20)  # all are open at once, or this breaks
        return good(number, path, body)

    with scripted(answer) as (url, _), Endpoint(url, "m") as endpoint, ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda seed: say(endpoint, seed=seed), range(16)))
        assert [reply.text for reply in replies] == ["hi"] * 16
        assert endpoint.usage.prompt == 48


def test_closing_ends_the_waiting():
    def answer(number, path, body):
        threading.Timer(0.2, endpoint.close).start()
        return 503, {"retry-after": "60"}, {}

    with scripted(answer) as (url, script):
        endpoint = Endpoint(url, "m", timeout_s=600)
        with pytest.raises(EndpointError):
            say(endpoint)
    assert len(script.asked) == 1


@pytest.mark.parametrize("moment", ["connected", "asked"])
def test_a_connection_opened_while_the_endpoint_closes_is_closed(moment, monkeypatch):
    """The client closes what it knows by then: a connection that is being opened comes later."""
    opened, connect = [], socket.create_connection

    def connect_and_close(*address, **options):
        opened.append(connect(*address, **options))
        if moment == "connected":
            endpoint.close()
        return opened[-1]

    def answer(number, path, body):
        endpoint.close()
        return good(number, path, body)

    with scripted(answer) as (url, script):
        endpoint = Endpoint(url, "m", timeout_s=600)
        monkeypatch.setattr(socket, "create_connection", connect_and_close)
        with pytest.raises(EndpointError):
            say(endpoint)
    assert len(opened) == 1 and opened[0].fileno() == -1
    assert len(script.asked) == (moment == "asked")


def test_a_model_that_is_not_there_is_named_before_anything_is_played():
    with scripted(lambda *asked: (200, {}, {"data": [{"id": "small"}, {"id": "large"}, 7]})) as (url, _):
        with Endpoint(url, "small") as endpoint:
            endpoint.check()
        with Endpoint(url, "smal") as endpoint, pytest.raises(ConfigError, match=r"'smal'.*did you mean 'small'"):
            endpoint.check()


@pytest.mark.parametrize(
    ("url", "base"),
    [("http://h:1", "http://h:1/v1"), ("http://h:1/", "http://h:1/v1"), ("https://h/api/v2/", "https://h/api/v2")],
)
def test_addresses(url, base):
    assert Endpoint(url, "m").base_url == base


BAD_SETTINGS = [
    ({"base_url": "localhost:8000"}, "expected the address of an endpoint"),
    ({"base_url": f"http://me:{KEY}@h/v1"}, "user or password"),
    ({"base_url": "http://h/v1?key=1"}, "query"),
    ({"key": SecretStr("a\nb")}, "characters with unprintable ones"),
    ({"timeout_s": 0}, "timeout_s"),
    ({"model": ""}, "missing model name for"),
]


@pytest.mark.parametrize(("settings", "said"), BAD_SETTINGS)
def test_bad_settings_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said) as refused:
        Endpoint(**({"base_url": "http://127.0.0.1:1/v1", "model": "m"} | settings))
    assert KEY not in str(refused.value)


def test_a_key_in_clear_text_to_another_machine_is_warned_of(caplog):
    Endpoint("http://10.0.0.7/v1", "m", key=SecretStr(KEY))
    assert "is sent unencrypted: use https" in caplog.text and KEY not in caplog.text


@pytest.mark.parametrize(
    ("content", "text", "thought"),
    [
        ([{"type": "text", "text": "hi"}], "hi", None),
        ([{"type": "text", "text": "h"}, {"type": "output_text", "text": "i"}], "hi", None),
        (
            [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "7"}],
            "7",
            "Hm.",
        ),
        ([{"type": "reasoning", "text": "Hm."}, "7"], "7", "Hm."),
        ([], "", None),
    ],
)
def test_content_in_parts_is_read_as_text_and_thought(content, text, thought):
    row = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    reply = read_reply(row, chat=True, tokens=False, request_name="here")
    assert (reply.text, reply.thought) == (text, thought)


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": None}, 7])
def test_content_with_a_part_that_is_not_text_is_refused(part):
    row = {"choices": [{"message": {"content": [{"type": "text", "text": "hi"}, part]}}]}
    with pytest.raises(EndpointError, match="the choice has no text"):
        read_reply(row, chat=True, tokens=False, request_name="here")
    with pytest.raises(EndpointError, match="the choice has no text"):
        read_reply({"choices": [{"text": []}]}, chat=False, tokens=False, request_name="here")


def test_an_encoded_answer_is_told_from_one_that_is_not_json():
    packed = gzip.compress(json.dumps(completion("hi")).encode())
    with (
        scripted(lambda *asked: (200, {"content-encoding": "gzip"}, packed)) as (url, _),
        Endpoint(url, "m") as endpoint,
    ):
        with pytest.raises(EndpointError, match="the answer is encoded: got gzip"):
            say(endpoint)


def test_a_model_that_takes_max_completion_tokens_is_asked_so_from_then_on():
    refusal = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )

    def answer(number, path, body):
        return (400, {}, {"error": {"message": refusal}}) if "max_tokens" in body else good(number, path, body)

    with scripted(answer) as (url, script), Endpoint(url, "m") as endpoint:
        assert [say(endpoint).text for _ in range(2)] == ["hi", "hi"]
    limits = [[(name, body[name]) for name in body if "tokens" in name] for _, _, body in script.asked]
    assert limits == [[("max_tokens", 7)], [("max_completion_tokens", 7)], [("max_completion_tokens", 7)]]
    with (
        scripted(lambda *asked: (400, {}, {"error": {"message": refusal}})) as (url, script),
        Endpoint(url, "m") as endpoint,
    ):
        with pytest.raises(EndpointError, match="max_completion_tokens"):
            say(endpoint)
    assert len(script.asked) == 2
