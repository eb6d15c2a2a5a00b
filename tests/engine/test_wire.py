"""vLLM's and SGLang's routes: conversations as they go over the wire, and the same clients against a server of ours."""

from __future__ import annotations

import json
import shutil

import httpx2
import numpy as np
import pytest
from safetensors.numpy import save_file

import evolvent as ev
from evolvent.engine.asks import GREEDY, SampleAsk, Sampling
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.labels import same_weights, weights_label
from evolvent.engine.remote import RemoteEngine
from evolvent.engine.replies import FINGERPRINT
from evolvent.engine.sglang import SglangEndpoint
from evolvent.engine.vllm import VllmEndpoint
from evolvent.errors import (
    ConfigError,
    ContextOverflow,
    EndpointError,
    Incomplete,
    TokensMissing,
    WeightsChanged,
)
from evolvent.messages import Message
from evolvent.models.policy import load_policy
from evolvent.serve.openai.generator import policy_fingerprint
from tests.engine.replayed import replayed, talk
from tests.learn.byte_policy import byte_policy
from tests.serve.command import command
from tests.serve.small_policy import NAME, policy_server

MODEL = "Qwen/Qwen3-0.6B"
LABEL = "evolvent-v3-0123456789ab"
KINDS = {"vllm": VllmEndpoint, "sglang": SglangEndpoint}
SAMPLING = {"vllm": Sampling(0.7, 20, 0.9), "sglang": Sampling(0.7)}
IDS, LOGPROBS = [1986, 374, 264, 151645], [-0.31342, -1.0625, -0.00125, -0.5]
PROMPT = [151644, 872, 198]


def ask(kind, name, call, **stands_for):
    """What a call gives in a recorded conversation."""
    with replayed(talk(kind, name, LABEL=LABEL, **stands_for)) as url:
        with KINDS[kind](url, MODEL, tokens=True) as endpoint:
            return call(endpoint)


def complete(kind):
    return lambda endpoint: endpoint.complete(PROMPT, sampling=SAMPLING[kind], max_tokens=16, seed=7, stop=["END"])


@pytest.fixture
def folder(tmp_path):
    """Weights of version 3."""
    place = tmp_path / "step-000003"
    place.mkdir()
    save_file({"a": np.arange(40_000, dtype=np.float32)}, place / "model.safetensors")
    (place / "evolvent.json").write_text('{"format": 1, "dialect": "chat", "version": 3}\n', encoding="utf-8")
    return place


@pytest.mark.parametrize("kind", KINDS)
def test_ids_in_and_out(kind):
    reply = ask(kind, "complete", complete(kind))
    assert (reply.text, reply.stop, reply.prompt_tokens, reply.completion_tokens) == ("This is a", "stop", 3, 4)
    assert reply.tokens.prompt.tolist() == PROMPT and reply.tokens.ids.tolist() == IDS
    assert reply.tokens.logprobs.tolist() == np.array(LOGPROBS, np.float32).tolist()
    assert (reply.fingerprint, reply.version) == (LABEL, 3), "the weights' label tells the version"


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat(kind):
    said = [Message("user", "Hello")]
    reply = ask(kind, "chat", lambda endpoint: endpoint.chat(said, sampling=Sampling(), max_tokens=16, seed=7))
    assert (reply.text, reply.model, reply.version) == ("This is a", MODEL, 3)
    assert reply.tokens.prompt.tolist() == [151644, 872, 198, 9707, 151645] and reply.tokens.ids.tolist() == IDS
    assert reply.tokens.logprobs.tolist() == np.array(LOGPROBS, np.float32).tolist()


def test_how_sglang_reads_a_text():
    assert ask("sglang", "tokens_of", lambda endpoint: endpoint.tokenize("This is")).tolist() == [1986, 374]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_handed_over_under_their_label(kind, folder):
    label = weights_label(folder)
    exchanges = talk(kind, "hand_over", LABEL=label, FOLDER=folder)
    with replayed(exchanges) as url, KINDS[kind](url, MODEL) as endpoint:
        assert endpoint.load_weights(folder) == label
    assert FINGERPRINT.fullmatch(label)[1] == "3"


FAILURES = [
    ("vllm", "two_versions", WeightsChanged, "step-1 and step-2"),
    ("sglang", "two_versions", WeightsChanged, "step-2"),
    ("vllm", "aborted", EndpointError, "the endpoint aborted the reply"),
    ("sglang", "aborted", EndpointError, "the endpoint aborted the reply"),
    ("vllm", "too_long", ContextOverflow, "too long"),
    ("sglang", "too_long", ContextOverflow, "too long"),
    ("sglang", "without_logprobs", TokensMissing, "log-probabilities do not match the generated tokens"),
    ("sglang", "other_ids", TokensMissing, "log-probabilities do not match the generated tokens"),
    ("sglang", "read_otherwise", EndpointError, "SGLang read a different number of tokens than it received"),
]


@pytest.mark.parametrize(("kind", "name", "error", "said"), FAILURES)
def test_replies_that_nothing_is_learned_from(kind, name, error, said):
    with pytest.raises(error, match=said):
        ask(kind, name, complete(kind))


HAND_OVERS = [
    ("vllm", "not_in_development_mode", EndpointError, "404"),
    ("vllm", "cache_is_kept", EndpointError, "the prefix cache of the old weights was not cleared"),
    ("vllm", "other_weights", WeightsChanged, "somebody-elses"),
    ("sglang", "refused", EndpointError, "not found"),
    ("sglang", "other_weights", WeightsChanged, "somebody-elses"),
]


@pytest.mark.parametrize(("kind", "name", "error", "said"), HAND_OVERS)
def test_weights_that_were_not_taken(kind, name, error, said, folder):
    """A conversation ends where it goes wrong: above all, vLLM is not resumed with weights that nobody knows."""
    exchanges = talk(kind, name, LABEL=weights_label(folder), FOLDER=folder)
    with replayed(exchanges) as url, KINDS[kind](url, MODEL) as endpoint:
        with pytest.raises(error, match=said):
            endpoint.load_weights(folder)


def test_a_label_changes_with_the_weights_and_the_version_alone(folder):
    first = weights_label(folder)
    copy = folder.parent / "elsewhere"
    shutil.copytree(folder, copy)
    assert weights_label(copy) == first, "not with the place"
    (copy / "evolvent.json").write_text('{"version": 4}', encoding="utf-8")
    assert weights_label(copy).replace("-v4-", "-v3-") == first
    weights = np.arange(40_000, dtype=np.float32)
    for place in (0, 20_000, 39_999):
        changed = weights.copy()
        changed[place] += 1
        save_file({"a": changed}, folder / "model.safetensors")
        assert weights_label(folder) != first
    (folder / "model.safetensors").unlink()
    with pytest.raises(Incomplete, match="the folder has no weights"):
        weights_label(folder)
    (copy / "evolvent.json").write_text("[]", encoding="utf-8")
    with pytest.raises(Incomplete, match="cannot be read"):
        weights_label(copy)


def test_labels_of_ours_are_the_same_by_their_version():
    assert same_weights("evolvent-v3-ab", "evolvent-v3-cd") and not same_weights("evolvent-v4-ab", "evolvent-v3-ab")
    assert same_weights("step-3", "step-3") and not same_weights("default", "evolvent-v3-ab")


def test_sglangs_log_probabilities_are_not_of_a_cut_distribution():
    with SglangEndpoint("http://127.0.0.1:9/v1", "m", tokens=True) as endpoint:
        for sampling in (Sampling(top_k=3), Sampling(top_p=0.9)):
            with pytest.raises(ConfigError, match="ignore truncated sampling"):
                endpoint.complete([1], sampling=sampling, max_tokens=1)
            with pytest.raises(ConfigError, match="ignore truncated sampling"):
                endpoint.chat([Message("user", "a")], sampling=sampling, max_tokens=1)


# ---------------------------------------------------------------------- against a server of ours


@pytest.fixture(scope="module")
def policy():
    return byte_policy(seed=1)


@pytest.fixture(scope="module")
def served(policy):
    with policy_server(policy) as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.7), GREEDY])
def test_our_server_gives_what_the_engine_gives(kind, sampling, policy, served):
    """The same ids and, bit for bit, the same log-probabilities, whichever of the two protocols asks.

    The prompts share no first token: the engine computes a shared prefix once, for the request that arrives first, and
    the order of two requests over the network would then decide about the last bit of the other one.
    """
    asks = [
        SampleAsk(None, [5 + n, 6, 7], 12, policy.dialect.stop_ids, sampling=sampling, seeds=(n, 40)) for n in (0, 1)
    ]
    here = ask_and_wait(asks, ev.LocalEngine(policy, slots=4))
    with KINDS[kind](served.url, NAME, tokens=True, processed=True) as endpoint:
        engine = RemoteEngine(endpoint, context=policy.context, vocabulary=258)
        there = ask_and_wait(asks, engine)
        engine.close()
        reply = endpoint.complete([5, 6, 7], sampling=sampling, max_tokens=12, seed=0)
        assert endpoint.tokenize("a text").tolist() == policy.tokenizer.encode("a text")
    for one, other in zip([c for ask in here for c in ask], [c for ask in there for c in ask], strict=True):
        assert one.ids.tolist() == other.ids.tolist() and one.stop == other.stop
        assert one.logprobs.tobytes() == other.logprobs.tobytes()
    assert reply.fingerprint == policy_fingerprint(policy)


def test_a_chat_with_our_server_tells_the_weights_too(policy, served):
    with VllmEndpoint(served.url, NAME, tokens=True, processed=True) as endpoint:
        reply = endpoint.chat([Message("user", "hi")], sampling=Sampling(), max_tokens=9, seed=3)
    assert reply.fingerprint == policy_fingerprint(policy) and len(reply.tokens.ids) == reply.completion_tokens


def test_sglangs_client_hands_weights_to_our_server(tmp_path, policy):
    policy.save(tmp_path / "first")
    later = tmp_path / "root" / "later"
    byte_policy(seed=2).next_version().save(later)
    with command("--policy", tmp_path / "first", "--reload", tmp_path / "root", OMP_NUM_THREADS="1") as server:
        with SglangEndpoint(f"{server.url}/v1", "first") as endpoint:
            before = endpoint.complete([5, 6], sampling=GREEDY, max_tokens=4)
            told = endpoint.load_weights(later)
            after = endpoint.complete([5, 6], sampling=GREEDY, max_tokens=4)
    assert (before.version, after.version) == (0, 1)
    assert told == after.fingerprint == policy_fingerprint(load_policy(later))


def test_generate_as_sglang_has_it(policy, served):
    with httpx2.Client(base_url=served.url.removesuffix("/v1"), timeout=60, trust_env=False) as http:
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 5, "temperature": 0}}
        row = http.post("/generate", json=body).json()
        meta = row["meta_info"]
        assert "output_token_logprobs" not in meta and meta["finish_reason"]["type"] in ("length", "stop")
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, len(row["output_ids"]))
        assert meta["weight_version"] == http.get("/model_info").json()["weight_version"] == policy_fingerprint(policy)
        several = http.post("/generate", json={**body, "input_ids": [[5, 6, 7], [8, 9]], "rid": "mine"}).json()
        assert several[0]["output_ids"] == row["output_ids"] and several[1]["meta_info"]["id"] == "mine_1"
        two = {**body, "sampling_params": {"max_new_tokens": 5, "n": 2, "sampling_seed": 4}, "return_logprob": True}
        drawn = http.post("/generate", json=two).json()
        assert len(drawn) == 2 and drawn[0]["output_ids"] != drawn[1]["output_ids"]
        for one in drawn:
            assert [pair[1] for pair in one["meta_info"]["output_token_logprobs"]] == one["output_ids"]
        text = http.post("/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": 2, "top_k": -1}}).json()
        assert text["meta_info"]["prompt_tokens"] == len(policy.tokenizer.encode("hi"))
        wrong = [
            {},
            {"text": "a", "input_ids": [1]},
            {**body, "stream": True},
            {**body, "image_data": "x"},
            {**body, "sampling_params": {"min_p": 0.1}},
            {**body, "top_logprobs_num": 4},
            {"input_ids": []},
            {"input_ids": [999]},
        ]
        for row in wrong:
            answer = http.post("/generate", json=row)
            assert answer.status_code == 400 and answer.json()["error"]["message"], row


def test_the_versions_of_a_stream_come_last_and_count_all_tokens(policy, served):
    body = {
        "model": NAME,
        "prompt": [5, 6],
        "max_tokens": 11,
        "temperature": 0,
        "stream": True,
        "return_weight_versions": True,
        "return_token_ids": True,
    }
    with httpx2.Client(base_url=served.url, timeout=60, trust_env=False) as http:
        lines = http.post("/completions", json=body).text.split("\n\n")
    rows = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    ids = [token for row in rows for token in row["token_ids"]]
    spans = [row["weight_versions"] for row in rows]
    assert spans[-1] == [{"version": policy_fingerprint(policy), "start": 0, "end": len(ids)}] and set(
        map(str, spans[:-1])
    ) == {"None"}
    assert len(rows[0]["token_ids"]) == 1, "the first token is not waited with for others"
