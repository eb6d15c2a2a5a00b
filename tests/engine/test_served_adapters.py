"""Adapters at vLLM and SGLang: servers that answer as their sources say, and what a client makes of their errors.

vLLM's answers are those of `entrypoints/serve/lora/api_router.py` and `entrypoints/openai/models/serving.py`; SGLang's
are those of `entrypoints/http_server.py`, `managers/tokenizer_control_mixin.py` and `lora/lora_manager.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from evolvent.engine.asks import Sampling
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.served_adapters import ServedAdapter
from evolvent.engine.sglang import SglangEndpoint
from evolvent.engine.vllm import VllmEndpoint
from evolvent.errors import ConfigError, EndpointError, WeightsChanged
from evolvent.messages import Message
from tests.serve.small_policy import completion, scripted

BASE = "Qwen/Qwen3-0.6B"
FIRST = ServedAdapter("evolvent-v1-0123456789ab", Path("/weights/snapshots/step-000001"))
SECOND = ServedAdapter("evolvent-v2-0123456789ab", Path("/weights/snapshots/step-000002"))


def answer_error(status: int, message: str, kind: str) -> tuple[int, dict[str, str], object]:
    """vLLM's ErrorResponse."""
    return status, {}, {"error": {"message": message, "type": kind, "param": None, "code": status}}


class Vllm:
    """vLLM with `--enable-lora`, whose routes need VLLM_ALLOW_RUNTIME_LORA_UPDATING.

    Args:
        refusal: message of an engine that does not load adapters.
        has_routes: whether the variable is set.
        answers_as: what the replies name as their model; none: the model that is asked.
    """

    def __init__(self, *, refusal: str = "", has_routes: bool = True, answers_as: str = "") -> None:
        self.loaded, self.requested_models = {}, []
        self.refusal, self.has_routes, self.answers_as = refusal, has_routes, answers_as

    def __call__(self, number: int, path: str, body: object) -> tuple[int, dict[str, str], object]:
        if path.endswith("_lora_adapter"):
            if not self.has_routes:
                return 404, {}, {"detail": "Not Found"}
            return (405, {}, {"detail": "Method Not Allowed"}) if body is None else self.change(path, body)
        self.requested_models.append(body["model"])
        if body["model"] not in (BASE, *self.loaded):
            return answer_error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        return 200, {}, completion("hi") | {"model": self.answers_as or body["model"]}

    def change(self, path: str, body: dict[str, str]) -> tuple[int, dict[str, str], object]:
        name = body["lora_name"]
        if path == "/v1/unload_lora_adapter":
            if name not in self.loaded:
                return answer_error(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
            del self.loaded[name]
            return 200, {}, f"Success: LoRA adapter '{name}' removed successfully.".encode()
        if name in self.loaded:
            message = f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, "
            return answer_error(400, message + "set 'load_inplace' to True.", "InvalidUserInput")
        if self.refusal:
            return answer_error(500, self.refusal, "InternalServerError")
        self.loaded[name] = body["lora_path"]
        return 200, {}, f"Success: LoRA adapter '{name}' added successfully.".encode()


class Sglang:
    """SGLang; `is_enabled`: whether it was started with `--enable-lora`."""

    def __init__(self, *, is_enabled: bool = True) -> None:
        self.loaded, self.requested_models, self.is_enabled = {}, [], is_enabled

    def __call__(self, number: int, path: str, body: object) -> tuple[int, dict[str, str], object]:
        if path.endswith("_lora_adapter"):
            return (405, {}, {"detail": "Method Not Allowed"}) if body is None else self.change(path, body)
        self.requested_models.append(body.get("lora_path"))
        name = body.get("lora_path")
        if name is not None and name not in self.loaded:
            message = f"Got LoRA adapter that has never been loaded: {name}\nAll loaded adapters: dict_keys([])."
            return 400, {}, {"error": {"message": message}}
        if path == "/generate":
            meta = {"finish_reason": {"type": "stop"}, "prompt_tokens": 3, "weight_version": "default"}
            meta |= {"completion_tokens": 2, "output_token_logprobs": [[-0.5, 5, None], [-0.25, 6, None]]}
            return 200, {}, {"text": "hi", "output_ids": [5, 6], "meta_info": meta}
        return 200, {}, completion("hi") | {"model": body["model"], "metadata": {"weight_version": "default"}}

    def change(self, path: str, body: dict[str, str]) -> tuple[int, dict[str, str], object]:
        name, message = body["lora_name"], ""
        if not self.is_enabled:
            message = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
        elif path == "/load_lora_adapter" and name in self.loaded:
            message = f"Failed to load LoRA adapter {name} because it is already loaded"
        elif path == "/unload_lora_adapter" and name not in self.loaded:
            message = f"LoRA with name {name} does not exist. Loaded LoRAs: odict_keys([])"
        elif path == "/load_lora_adapter":
            self.loaded[name] = body["lora_path"]
        else:
            del self.loaded[name]
        status = 400 if message else 200
        return status, {}, {"success": not message, "error_message": message, "loaded_adapters": self.loaded}


KINDS = {"vllm": (Vllm, VllmEndpoint), "sglang": (Sglang, SglangEndpoint)}


def write(endpoint: Endpoint):
    return endpoint.complete([1, 2, 3], sampling=Sampling(), max_tokens=4, seed=1)


def say(endpoint: Endpoint):
    return endpoint.chat([Message("user", "Hello")], sampling=Sampling(), max_tokens=4, seed=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_request_names_its_adapter_and_the_reply_tells_its_version(kind):
    make_server, endpoint_type = KINDS[kind]
    server = make_server()
    with scripted(server) as (url, _), endpoint_type(url, BASE, tokens=True) as endpoint:
        endpoint.check_adapters()
        endpoint.load_adapter(FIRST)
        endpoint.load_adapter(SECOND)
        assert server.loaded == {one.name: str(one.folder) for one in (FIRST, SECOND)}
        replies = [say(endpoint.using(FIRST)), say(endpoint.using(SECOND)), say(endpoint)]
        assert [reply.version for reply in replies] == [1, 2, 0]
        base = BASE if kind == "vllm" else None
        assert server.requested_models == [FIRST.name, SECOND.name, base]
        assert endpoint.usage.completion == 6, "its views count with it"


def test_ids_of_sglang_name_the_adapter_too():
    server = Sglang()
    with scripted(server) as (url, script), SglangEndpoint(url, BASE, tokens=True) as endpoint:
        endpoint.load_adapter(FIRST)
        reply = write(endpoint.using(FIRST))
        assert (reply.version, reply.fingerprint, reply.tokens.ids.tolist()) == (1, FIRST.name, [5, 6])
        path, _, body = script.asked[-1]
        assert path == "/generate" and body["lora_path"] == FIRST.name and "model" not in body


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_that_is_loaded_stays_and_one_that_is_gone_may_be_dropped(kind):
    make_server, endpoint_type = KINDS[kind]
    with scripted(make_server()) as (url, script), endpoint_type(url, BASE, tokens=True) as endpoint:
        for _ in range(2):
            endpoint.load_adapter(FIRST)
        for _ in range(2):
            endpoint.unload_adapter(FIRST.name)
        assert len(script.asked) == 4, "none of the answers is asked for again"


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_began_anew_loads_the_adapter_again(kind):
    make_server, endpoint_type = KINDS[kind]
    server = make_server()
    with scripted(server) as (url, _), endpoint_type(url, BASE, tokens=True) as endpoint:
        endpoint.load_adapter(FIRST)
        server.loaded.clear()
        assert say(endpoint.using(FIRST)).version == 1
        assert server.loaded == {FIRST.name: str(FIRST.folder)}
        server.loaded.clear()
        if kind == "sglang":
            assert write(endpoint.using(FIRST)).version == 1


REFUSALS = [
    (Vllm(refusal="Call to add_lora method failed: LoRA is not enabled. Use --enable-lora to enable LoRA."), "vllm"),
    (Vllm(refusal="Call to add_lora method failed: LoRA rank 64 is greater than max_lora_rank 16."), "vllm"),
    (Sglang(is_enabled=False), "sglang"),
]


@pytest.mark.parametrize(("server", "kind"), REFUSALS)
def test_a_server_that_does_not_load_adapters_is_not_asked_again_and_again(server, kind):
    with scripted(server) as (url, script), KINDS[kind][1](url, BASE, tokens=True) as endpoint:
        started = time.monotonic()
        with pytest.raises(EndpointError, match=r"LoRA (is not enabled|rank 64 is greater)"):
            endpoint.load_adapter(FIRST, wait_s=60)
        assert time.monotonic() - started < 30 and len(script.asked) == 1
        with pytest.raises(EndpointError, match=r"LoRA|exist"):
            say(endpoint.using(FIRST))


def test_servers_without_the_routes_are_refused_by_a_question_that_changes_nothing():
    with scripted(Vllm(has_routes=False)) as (url, _), VllmEndpoint(url, BASE) as endpoint:
        with pytest.raises(ConfigError, match=r"loads no adapters.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
            endpoint.check_adapters()
    with scripted(lambda number, path, body: (404, {}, {"detail": "Not Found"})) as (url, _):
        with SglangEndpoint(url, BASE) as endpoint, pytest.raises(ConfigError, match="--enable-lora"):
            endpoint.check_adapters()


def test_a_reply_of_another_model_is_not_taken():
    with scripted(Vllm(answers_as=BASE)) as (url, _), VllmEndpoint(url, BASE, tokens=True) as endpoint:
        endpoint.load_adapter(FIRST)
        with pytest.raises(WeightsChanged, match="another model than was asked"):
            say(endpoint.using(FIRST))


def test_a_lost_answer_is_asked_for_again_and_loads_the_adapter_once():
    server, statuses = Vllm(), []

    def lose_the_first(number: int, path: str, body: object):
        answer = server(number, path, body)
        statuses.append(answer[0])
        return None if number == 0 else answer

    with scripted(lose_the_first) as (url, _), VllmEndpoint(url, BASE, tokens=True) as endpoint:
        endpoint.load_adapter(FIRST, wait_s=20)
    assert server.loaded == {FIRST.name: str(FIRST.folder)} and statuses == [200, 400]
