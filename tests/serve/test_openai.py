"""A policy behind an OpenAI-compatible server, asked by clients that know nothing of it but the published form."""

from __future__ import annotations

import json
import threading
import time

import httpx2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evolvent as ev
from evolvent.engine.asks import GREEDY, SampleAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.messages import Message
from evolvent.models.dialects import Words
from evolvent.models.tiny import word_tokenizer
from evolvent.serve.app import build_app
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.local import LocalHost
from evolvent.serve.native.http import NativeDialect
from evolvent.serve.openai.conversations import ConversationCache
from evolvent.serve.openai.face import PolicyDialect
from evolvent.serve.openai.generator import Generator, policy_fingerprint
from evolvent.serve.openai.reply import count_unsendable, cut_at_stop
from evolvent.web import Access
from evolvent.worlds.panel import Sizes
from tests.agents.test_chat import byte_policy
from tests.serve.small_host import serving
from tests.serve.small_policy import NAME, policy_server

WORDS = ["go", "left", "right", "stay", "see", "a", "door", "and", "key", ",", "."]
ASKED = [{"role": "system", "content": "ignored"}, {"role": "user", "content": "see a door, go"}]


@pytest.fixture(scope="module")
def policy():
    return ev.tiny_policy(WORDS, context=128, seed=4)


@pytest.fixture(scope="module")
def served(policy):
    with policy_server(policy) as running:
        yield running


@pytest.fixture(scope="module")
def http(served):
    with httpx2.Client(base_url=served.url, timeout=60, trust_env=False) as client:
        yield client


def chat(http, messages=ASKED, **more):
    answer = http.post("/chat/completions", json={"model": NAME, "messages": messages, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def complete(http, prompt, **more):
    answer = http.post("/completions", json={"model": NAME, "prompt": prompt, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(http, path, **body):
    """The chunks of a stream, and whether it said that it was done."""
    with http.stream("POST", path, json={"model": NAME, "stream": True, **body}) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def in_process(policy, prompt, *, seeds=(0,), sampling=GREEDY, max_tokens=12):
    ask = SampleAsk(None, prompt, max_tokens, policy.dialect.stop_ids, sampling=sampling, seeds=seeds)
    return ask_and_wait([ask], ev.LocalEngine(policy, slots=4))[0]


def test_models_are_listed(http, policy):
    (card,) = http.get("/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == (NAME, "model", 128)
    assert card["system_fingerprint"] == policy_fingerprint(policy)
    assert http.get(f"/models/{NAME}").json()["id"] == NAME
    missing = http.get("/models/smal")
    assert missing.status_code == 404 and "did you mean 'small'" in missing.json()["error"]["message"]


def test_a_chat_reply_is_what_the_engine_samples(http, policy):
    row = chat(http, temperature=0, max_tokens=12, logprobs=True, return_token_ids=True)
    prompt = policy.dialect.open("", ASKED[1]["content"])
    (want,) = in_process(policy, prompt)
    (choice,) = row["choices"]
    assert row["object"] == "chat.completion" and row["model"] == NAME and row["id"].startswith("chatcmpl-")
    assert row["prompt_token_ids"] == prompt and choice["token_ids"] == want.ids.tolist()
    assert choice["message"] == {"role": "assistant", "content": policy.dialect.text(want.ids)}
    assert choice["finish_reason"] == want.stop and row["system_fingerprint"] == policy_fingerprint(policy)
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == want.logprobs.tolist()
    count = {"prompt_tokens": len(prompt), "completion_tokens": len(want.ids)}
    assert row["usage"] == count | {"total_tokens": sum(count.values())}


def test_samples_derive_from_the_seed_and_have_the_log_probabilities_of_their_distribution(http, policy):
    sampling = ev.Sampling(temperature=1.7, top_k=6, top_p=0.95)
    body = {"temperature": 1.7, "top_k": 6, "top_p": 0.95, "max_tokens": 9, "logprobs": True, "return_token_ids": True}
    many = chat(http, n=5, seed=77, **body)["choices"]
    assert [choice["index"] for choice in many] == list(range(5))
    again = chat(http, n=5, seed=77, **body)["choices"]
    assert many == again
    assert len({tuple(choice["token_ids"]) for choice in many}) > 1
    alone = chat(http, seed=77, **body)["choices"][0]
    assert alone == many[0], "the first sample has the seed itself"
    (want,) = in_process(
        policy, policy.dialect.open("", ASKED[1]["content"]), seeds=(77,), sampling=sampling, max_tokens=9
    )
    assert alone["token_ids"] == want.ids.tolist()
    got = np.array([one["logprob"] for one in alone["logprobs"]["content"]], np.float32)
    np.testing.assert_allclose(got, want.logprobs, atol=1e-6)
    # At this temperature the tokens are nearly uniform: six equal replies have probability 2e-8 (at 1.0 it is 0.002).
    hot = {"temperature": 100, "max_tokens": 9, "return_token_ids": True}
    drawn = [chat(http, **hot)["choices"][0]["token_ids"] for _ in range(6)]
    assert len(set(map(tuple, drawn))) > 1, "without a seed one is drawn"


def test_completions_of_texts_and_of_ids(http, policy):
    text = "see a door , go"
    ids = policy.tokenizer.encode(text)
    row = complete(http, [ids, ids[:3]], temperature=0, max_tokens=6, logprobs=0, return_token_ids=True, n=2)
    assert row["object"] == "text_completion" and len(row["choices"]) == 4
    assert [choice["prompt_token_ids"] for choice in row["choices"]] == [ids, ids, ids[:3], ids[:3]]
    assert row["usage"]["prompt_tokens"] == len(ids) + 3, "every prompt is read once"
    first = row["choices"][0]
    (want,) = in_process(policy, ids, max_tokens=6)
    assert first["token_ids"] == want.ids.tolist() and first["text"] == policy.dialect.text(want.ids)
    assert first["logprobs"]["token_logprobs"] == want.logprobs.tolist()
    assert len(first["logprobs"]["text_offset"]) == len(first["logprobs"]["tokens"]) == len(want.ids)
    assert complete(http, text, temperature=0, max_tokens=6)["choices"][0]["text"] == first["text"]
    assert len(policy.tokenizer.encode(complete(http, text, seed=1)["choices"][0]["text"])) <= 16


def _texts(chunks, key):
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            part = choice["delta"].get("content", "") if key == "delta" else choice["text"]
            texts[choice["index"]] = texts.get(choice["index"], "") + part
    return texts


@pytest.mark.parametrize("stop", [[], ["door go", "left", "q"], ["a", "\u00e9"]])
@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_a_stream_says_what_the_whole_reply_says(http, kind, stop, request):
    """Also of a model whose tokens are single bytes, of which several make a character."""
    body = {"messages": ASKED, "n": 3, "seed": 5, "temperature": 6.0, "max_tokens": 60, "logprobs": True}
    body |= {"return_token_ids": True, **({"stop": stop} if stop else {})}
    other = request.getfixturevalue("bytes_http") if kind == "bytes" else http
    whole = chat(other, **body)
    chunks = streamed(other, "/chat/completions", **body, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    parts = [(chunk, choice) for chunk in chunks for choice in chunk["choices"]]
    assert _texts(chunks, "delta") == {one["index"]: one["message"]["content"] for one in whole["choices"]}
    for choice in whole["choices"]:
        own = [part for _, part in parts if part["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [part["finish_reason"] for part in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        assert [token for part in own[1:] for token in part["token_ids"]] == choice["token_ids"]
        values = [entry["logprob"] for part in own[1:] for entry in part["logprobs"]["content"]]
        np.testing.assert_allclose(values, [one["logprob"] for one in choice["logprobs"]["content"]], atol=1e-5)
    told = [chunk["prompt_token_ids"] for chunk, _ in parts if "prompt_token_ids" in chunk]
    assert told == [whole["prompt_token_ids"]] * 3
    if stop:
        assert "stop" in {choice["finish_reason"] for choice in whole["choices"]}
        assert not any(text in choice["message"]["content"] for choice in whole["choices"] for text in stop)


@pytest.fixture(scope="module")
def bytes_http():
    with policy_server(byte_policy()) as running:
        with httpx2.Client(base_url=running.url, timeout=60, trust_env=False) as client:
            yield client


def test_a_stream_of_a_completion(http, policy):
    body = {"prompt": policy.tokenizer.encode("see a door"), "seed": 5, "temperature": 6.0, "max_tokens": 10}
    whole = complete(http, **body)
    chunks = streamed(http, "/completions", **body)
    assert _texts(chunks, "text") == {0: whole["choices"][0]["text"]}
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_a_context_that_runs_full_ends_the_reply(http, policy):
    prompt = policy.tokenizer.encode("see a door") * 41  # 123 of 128
    for more in ({}, {"stream": True}):
        body = {"model": NAME, "prompt": prompt, "max_tokens": 50, "seed": 9, "return_token_ids": True, **more}
        answer = http.post("/completions", json=body)
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        rows = [json.loads(line) for line in lines or [answer.text]]
        written = [token for row in rows for token in row["choices"][0]["token_ids"]]
        ended = rows[-1]["choices"][0]["finish_reason"]
        assert len(written) <= 5 and (ended == "length") == (len(written) == 5 and written[-1] != 2)


def refused(http, path="/chat/completions", status=400, **body):
    answer = http.post(path, json={"model": NAME, **({"messages": ASKED} if path.startswith("/chat") else {}), **body})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


REFUSALS = [
    ({"temperatur": 0}, "temperatur", "did you mean 'temperature'"),
    ({"temperature": -1}, "temperature", "greater than or equal to 0"),
    ({"temperature": 1e300}, "temperature", "less than or equal to 100"),
    ({"top_k": 2**70}, "top_k", "less than or equal to"),
    ({"temperature": "hot"}, "temperature", "valid number"),
    ({"max_tokens": 0}, "max_tokens", "got 0"),
    ({"n": 1000}, "n", "less than or equal to 128"),
    ({"presence_penalty": 2.5}, "presence_penalty", "less than or equal to 2"),
    ({"repetition_penalty": 0.5}, "repetition_penalty", "is not supported"),
    ({"tools": [{"type": "function"}]}, "tools[0]", "invalid tool"),
    ({"tools": {"type": "function"}}, "tools", "valid list"),
    ({"response_format": {"type": "json_object"}}, "response_format", "cannot write JSON"),
    ({"top_logprobs": 3}, "top_logprobs", "set logprobs to true"),
    ({"stop": [""]}, None, "at least 1 character"),
    ({"messages": []}, "messages", "at least 1 item"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "known role"),
    ({"messages": [{"role": "assistant", "content": "go"}]}, "messages", "user and assistant in turn"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "text"),
    ({"messages": [{"role": "user", "content": "a dragon"}]}, None, "'dragon'"),
]


@pytest.mark.parametrize(("body", "param", "said"), REFUSALS)
def test_what_cannot_be_done_is_refused_by_name(http, body, param, said):
    error = refused(http, **body)
    assert said in error["message"] and error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


def test_every_mistake_is_told_at_once(http):
    error = refused(http, temperatur=0, n=0, logit_bias={"5": 900}, stop=7)
    assert error["param"] is None
    assert all(word in error["message"] for word in ("temperatur", "n:", "logit_bias", "stop"))


def test_what_asks_for_nothing_is_accepted(http):
    idle = {
        "user": "me",
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": None,
        "tools": [],
        "response_format": {"type": "text"},
        "parallel_tool_calls": True,
        "max_completion_tokens": 3,
    }
    assert chat(http, **idle)["usage"]["completion_tokens"] <= 3


def test_prompts_that_are_none(http):
    for prompt in ([], "", [[]], ["go", ""], [[1], "go"]):
        assert refused(http, "/completions", prompt=prompt)["type"] == "invalid_request_error"
    assert "500" in refused(http, "/completions", prompt=[500])["message"]
    assert refused(http, "/completions", prompt=[1] * 128)["code"] == "context_length_exceeded"
    assert refused(http, "/completions", prompt=[1] * 128, stream=True)["code"] == "context_length_exceeded"
    assert "dragon" not in refused(http, "/completions", prompt=["go"] * 100, n=2)["message"]


def test_other_things_that_are_wrong(http, served):
    for data, status in ((b"{", 400), (b"[" * 5000, 413), (b'{"a": NaN}', 400), (b"[]", 400), (b"x" * (9 << 20), 413)):
        answer = http.post("/chat/completions", content=data)
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert refused(http, status=404, model="other")["code"] == "model_not_found"
    for method, path, status, code in (("GET", "/completions", 405, None), ("POST", "/embeddings", 404, "unknown_url")):
        answer = http.request(method, path)
        assert answer.status_code == status and answer.json()["error"]["code"] == code
        assert "/v1/completions" in answer.json()["error"]["message"]
    assert http.get(served.url.removesuffix("/v1") + "/health").json()["open"] == 0
    named = {"x-session-id": "s" * 999}
    answer = http.post("/chat/completions", json={"model": NAME, "messages": ASKED}, headers=named)
    assert answer.status_code == 413


def test_a_token_is_asked_for_and_strangers_are_refused(policy):
    access = Access(token="t" * 32)
    with (
        policy_server(policy, access=access) as running,
        httpx2.Client(base_url=running.url, trust_env=False, timeout=60) as http,
    ):
        for headers in ({}, {"authorization": "Bearer wrong"}):
            answer = http.get("/models", headers=headers)
            assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
        for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
            answer = http.get("/models", headers=headers)
            assert answer.status_code == 403 and answer.json()["error"]["type"] == "permission_error"
        assert http.get("/models", headers={"authorization": "Bearer " + "t" * 32}).status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["messages", "prompt", "n", "temperature", "top_p", "top_k", "max_tokens", "stop", "seed", "stream"]
FIELDS += ["logprobs", "stream_options", "return_token_ids", "tools", "tool_choice", "parallel_tool_calls", "best_of"]
FIELDS += ["user"]


@settings(max_examples=60, deadline=None)
@given(
    path=st.sampled_from(["/chat/completions", "/completions"]),
    body=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4) | JSON,
    whole=st.booleans(),
)
def test_whatever_is_sent_is_answered_and_nothing_breaks(http, path, body, whole):
    if whole and isinstance(body, dict):
        body = {"model": NAME, "messages": ASKED, "max_tokens": 3} | body
    answer = http.post(path, json=body)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_text_that_is_none(http, bytes_http):
    data = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "a\ud800b"}], "max_tokens": 2})
    assert http.post("/chat/completions", content=data).json()["error"]["code"] == "unknown_token"
    row = bytes_http.post("/chat/completions", content=data[:-1] + ', "return_token_ids": true}').json()
    want = bytes_http.post(
        "/chat/completions", content=data.replace("ud800", "ufffd")[:-1] + ', "return_token_ids": true}'
    )
    assert row["prompt_token_ids"] == want.json()["prompt_token_ids"]


def test_worlds_and_a_policy_on_one_server(policy):
    world = ev.Lookup(sizes=Sizes(train=8, dev=4, test=4))
    face = PolicyDialect(Generator(policy, ev.LocalEngine(policy, slots=2)), NAME)
    app = build_app(
        LocalHost({"lookup": world}), TaskIndex({"lookup": world}), access=Access(), dialects=[face, NativeDialect()]
    )
    with serving(app) as address, httpx2.Client(base_url=f"http://{address}/v1", timeout=60, trust_env=False) as http:
        assert [row["name"] for row in http.get("/worlds").json()["worlds"]] == ["lookup"]
        assert chat(http, max_tokens=3)["usage"]["completion_tokens"] <= 3
        assert refused(http, temperature=-1)["param"] == "temperature"


class Stuck(ev.LocalEngine):
    """An engine that computes nothing until it is released, or fails once."""

    def __init__(self, policy):
        super().__init__(policy, slots=4)
        self.released, self.fails = threading.Event(), False

    def poll(self):
        if self.fails:
            self.fails = False
            raise RuntimeError("out of luck")
        if self.released.is_set():
            return super().poll()
        time.sleep(0.002)
        return ()


@pytest.fixture
def stuck(policy):
    engine = Stuck(policy)
    with policy_server(policy, engine=engine, max_open=2) as running:
        yield running, engine
        engine.released.set()


def until(condition, within_s=60.0):
    end = time.monotonic() + within_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_written_for_a_client_that_left_is_taken_back(stuck, stream):
    running, engine = stuck
    with httpx2.Client(base_url=running.url, timeout=0.3, trust_env=False) as http:
        with pytest.raises(httpx2.ReadTimeout):
            http.post("/chat/completions", json={"model": NAME, "messages": ASKED, "stream": stream})
    assert until(lambda: running.generator.open == 0 and engine.pending() == 0)


def test_a_client_that_leaves_in_the_middle_of_a_stream(stuck):
    running, engine = stuck
    engine.released.set()
    body = {"model": NAME, "messages": ASKED, "stream": True, "n": 4, "seed": 1}
    with httpx2.Client(base_url=running.url, timeout=20, trust_env=False) as http:
        with http.stream("POST", "/chat/completions", json=body | {"n": 2}) as answer:
            next(answer.iter_lines())
            engine.released.clear()
    assert until(lambda: running.generator.open == 0 and engine.pending() == 0)


def test_a_full_server_says_when_to_come_back(stuck):
    running, engine = stuck
    with httpx2.Client(base_url=running.url, timeout=30, trust_env=False) as http:
        body = {"model": NAME, "messages": ASKED, "temperature": 0, "max_tokens": 4}
        answers = []

        def ask():
            answers.append(http.post("/chat/completions", json=body))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert until(lambda: running.generator.open == 2)
        full = http.post("/chat/completions", json=body)
        engine.released.set()
        for thread in threads:
            thread.join()
    assert full.status_code == 503 and full.headers["retry-after"] == "1"
    assert full.json()["error"]["code"] == "overloaded"
    assert [answer.status_code for answer in answers] == [200, 200]


def test_an_engine_that_fails_ends_what_is_open_and_goes_on(stuck, caplog):
    running, engine = stuck
    engine.released.set()
    engine.fails = True
    with httpx2.Client(base_url=running.url, timeout=30, trust_env=False) as http:
        failed = http.post("/chat/completions", json={"model": NAME, "messages": ASKED})
        assert failed.status_code == 500 and "out of luck" in failed.json()["error"]["message"]
        assert chat(http)["choices"]
    assert "1 requests open" in caplog.text


def test_new_weights_are_served_at_once_and_what_was_open_begins_again_under_them(stuck, policy):
    running, engine = stuck
    other = ev.tiny_policy(WORDS, context=128, seed=99).next_version()
    body = {"temperature": 0, "max_tokens": 12, "return_token_ids": True}
    with httpx2.Client(base_url=running.url, timeout=30, trust_env=False) as http:
        found = []
        thread = threading.Thread(target=lambda: found.append(chat(http, **body)))
        thread.start()
        assert until(lambda: engine.pending() == 1)
        running.sync(other)
        engine.released.set()
        thread.join()
        later = chat(http, **body)
    (want,) = in_process(other, other.dialect.open("", ASKED[1]["content"]))
    for row in (found[0], later):
        assert (
            row["system_fingerprint"] == policy_fingerprint(other)
            and row["choices"][0]["token_ids"] == want.ids.tolist()
        )


def test_fingerprints_tell_versions_and_weights_apart(policy):
    assert policy_fingerprint(policy.clone()) == policy_fingerprint(policy)
    later, changed = policy.next_version(), policy.clone()
    with torch.no_grad():
        for weight in changed.model.parameters():
            weight.add_(1e-3)
    assert len({policy_fingerprint(one) for one in (policy, later, changed)}) == 3
    assert (
        policy_fingerprint(later).startswith("evolvent-v1-")
        and policy_fingerprint(later)[12:] == policy_fingerprint(policy)[12:]
    )


def _said(*turns):
    return [Message(role, text) for role, text in turns]


def test_a_named_conversation_is_continued_from_its_own_tokens():
    words = Words(word_tokenizer(WORDS))
    known = ConversationCache()
    first = _said(("user", "see a door"))
    prompt = known.encode_prompt(first, words, "one")
    odd = [words._ids["go"], words._ids["<obs>"], words._ids["left"]]  # reads `go ? left`, and was cut
    known.store_reply(first, "one", reply=Message("assistant", words.text(odd)), ids=[*prompt, *odd], stopped=False)
    longer = [*first, *_said(("assistant", "go ? left"), ("user", "a key"))]
    assert known.encode_prompt(longer, words, "one") == [*prompt, *odd, *words.turn("a key", stopped=False)]
    anew = [*prompt, *words.action("go ? left"), *words.turn("a key", stopped=True)]
    assert known.encode_prompt(longer, words, None) == known.encode_prompt(longer, words, "two") == anew
    changed = [*first, *_said(("assistant", "go left"), ("user", "a key"))]
    assert known.encode_prompt(changed, words, "one") == [
        *prompt,
        *words.action("go left"),
        *words.turn("a key", stopped=True),
    ]
    more = [*longer, *_said(("assistant", "stay"), ("user", "see"))]
    tail = [*words.action("stay"), *words.turn("see", stopped=True)]
    assert known.encode_prompt(more, words, "one") == [*known.encode_prompt(longer, words, "one"), *tail], (
        "the newest known part counts"
    )


def test_only_so_many_tokens_are_remembered():
    words = Words(word_tokenizer(WORDS))
    known = ConversationCache(max_tokens=7)
    first = _said(("user", "see"))
    for session in "abc":
        known.store_reply(first, session, reply=Message("assistant", "go"), ids=[7, 7, 7], stopped=True)
    longer = [*first, *_said(("assistant", "go"), ("user", "see"))]
    kept = [known.encode_prompt(longer, words, session)[:3] == [7, 7, 7] for session in "abc"]
    assert kept == [False, True, True]
    for _ in range(5):
        known.store_reply(first, "c", reply=Message("assistant", "go"), ids=[7, 7, 7], stopped=True)
    assert known.encode_prompt(longer, words, "b")[:3] == [7, 7, 7], "the same again takes no more room"
    known.store_reply(first, "d", reply=Message("assistant", "go"), ids=[7] * 9, stopped=True)
    assert known.encode_prompt(longer, words, "d")[:9] == [7] * 9 and known.encode_prompt(longer, words, "b")[:3] != [
        7,
        7,
        7,
    ]


@settings(max_examples=60, deadline=None)
@given(st.text("ab\ufffd", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_a_stream_never_says_what_the_end_takes_back(text, stops):
    """Whatever comes: what has been sent is the beginning of the text at the moment when it ends."""
    sent = begun = ""
    for end in range(len(text) + 1):
        begun, cut = cut_at_stop(text[:end], stops)
        upto = len(begun) if cut else max(len(sent), len(begun) - count_unsendable(begun, stops))
        sent += begun[len(sent) : upto]
        if cut:
            break
    assert begun.startswith(sent)
    assert len(begun) - len(sent) <= count_unsendable(begun, stops)
    assert not any(stop in sent for stop in stops)
