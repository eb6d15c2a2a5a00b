"""Adapters that a served policy loads over its base: the routes of vLLM and SGLang, and what they refuse."""

from __future__ import annotations

import asyncio
import json

import httpx2
import numpy as np
import pytest
import torch

import evolvent as ev
from evolvent.engine.asks import Sampling
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.served_adapters import ServedAdapter
from evolvent.engine.sglang import SglangEndpoint
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import load_policy
from evolvent.scale.adapter_handover import (
    AdapterPublisher,
    check_served_adapter,
    count_folder_bytes,
    measure_sampler_difference,
)
from evolvent.serve.openai.adapters import AdapterTable
from evolvent.serve.openai.face import PolicyDialect
from evolvent.serve.openai.generator import Generator, policy_fingerprint
from evolvent.web import build_access
from tests.learn.byte_policy import byte_policy
from tests.serve.small_policy import NAME, policy_server

TOKEN = "a-token-of-24-characters"


def train(policy: ev.Policy, *, seed: int) -> ev.Policy:
    """An adapter on the policy as it may be after some updates: its second matrices are not 0 any more."""
    tuned = adapt(policy, AdapterConfig(kind="lora", rank=2), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in tuned.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.3, generator=generator)
    return tuned.next_version()


@pytest.fixture(scope="module")
def policy():
    return byte_policy(seed=1)


@pytest.fixture(scope="module")
def tuned(policy):
    return train(policy, seed=0), train(policy, seed=1).next_version()


@pytest.fixture(scope="module")
def root(tmp_path_factory, policy):
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def adapters(root, tuned):
    return [AdapterPublisher(root, keep=4).publish(one) for one in tuned]


@pytest.fixture(scope="module")
def served(root, policy):
    with policy_server(policy, reload=root) as server:
        yield server


@pytest.fixture
def http(served):
    with httpx2.Client(base_url=served.url.removesuffix("/v1"), timeout=60, trust_env=False) as client:
        yield client


def test_two_adapters_and_their_base_are_answered_side_by_side(served, policy, tuned, adapters):
    with Endpoint(served.url, NAME, tokens=True, processed=True) as endpoint:
        for adapter in adapters:
            endpoint.load_adapter(adapter)
        assert endpoint.models() == [NAME, *(adapter.name for adapter in adapters)]
        views = [endpoint, *map(endpoint.using, adapters)]
        replies = [view.complete([5, 6, 7], sampling=Sampling(), max_tokens=24, seed=3) for view in views]
        differences = [[measure_sampler_difference(view, one) < 1e-5 for view in views] for one in (policy, *tuned)]
    assert np.array_equal(differences, np.eye(3, dtype=bool)), "each name stands for its own weights"
    assert [reply.version for reply in replies] == [0, 1, 2]
    assert [adapter.name.startswith(f"evolvent-v{n}-") for n, adapter in enumerate(adapters, 1)] == [True, True]
    with SglangEndpoint(served.url, NAME, tokens=True, processed=True) as endpoint:
        for view, reply in zip([endpoint, *map(endpoint.using, adapters)], replies, strict=True):
            again = view.complete([5, 6, 7], sampling=Sampling(), max_tokens=24, seed=3)
            assert again.tokens.ids.tolist() == reply.tokens.ids.tolist() and again.version == reply.version


def test_an_adapter_that_the_server_lost_is_loaded_again_for_the_request_that_names_it(served, http, adapters):
    with Endpoint(served.url, NAME, tokens=True, processed=True) as endpoint:
        endpoint.load_adapter(adapters[0])
        http.post("/v1/unload_lora_adapter", json={"lora_name": adapters[0].name})
        reply = endpoint.using(adapters[0]).complete([5, 6], sampling=Sampling(), max_tokens=2, seed=1)
        assert reply.version == 1 and adapters[0].name in endpoint.models()


def test_the_routes_answer_in_the_forms_of_vllm_and_sglang(http, adapters):
    name, folder = "mine", str(adapters[0].folder)
    row = {"lora_name": name, "lora_path": folder}
    answer = http.post("/v1/load_lora_adapter", json=row)
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'mine' added successfully.")
    again = http.post("/v1/load_lora_adapter", json=row)
    assert again.status_code == 400 and "has already been loaded" in again.json()["error"]["message"]
    card = http.get(f"/v1/models/{name}").json()
    assert (card["id"], card["system_fingerprint"][:12]) == (name, "evolvent-v1-")
    body = {"model": name, "prompt": [5, 6], "max_tokens": 2}
    assert http.post("/v1/completions", json=body).json()["model"] == name
    chat = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=chat).json()["model"] == name
    assert http.post("/v1/responses", json={"model": name, "input": "Hi", "max_output_tokens": 16}).status_code == 200
    told = http.post("/unload_lora_adapter", json={"lora_name": name})
    assert told.status_code == 200 and told.json()["success"] is True and name not in told.json()["loaded_adapters"]
    assert http.post("/v1/completions", json=body).json()["error"]["code"] == "model_not_found"
    gone = http.post("/v1/unload_lora_adapter", json={"lora_name": name})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    gone = http.post("/unload_lora_adapter", json={"lora_name": name})
    assert gone.status_code == 400 and gone.json()["success"] is False and "mine" in gone.json()["error_message"]
    assert folder not in http.get("/v1/models").text, "no path of the machine is told"


def test_what_is_refused_changes_nothing(http, root, policy, adapters):
    other = byte_policy(seed=9)
    other_folder = AdapterPublisher(root / "other").publish(train(other, seed=0)).folder
    policy.save(root / "whole")
    before = http.get("/v1/models").json()
    for row, status, message in [
        ({"lora_name": "a", "lora_path": str(other_folder)}, 400, "the adapter's base differs from the served one"),
        ({"lora_name": "a", "lora_path": "whole"}, 400, "holds no adapter"),
        ({"lora_name": "a", "lora_path": "../beside"}, 403, "unsafe_path"),
        ({"lora_name": "a", "lora_path": "/etc"}, 403, "unsafe_path"),
        ({"lora_name": "a"}, 400, "missing folder of the adapter"),
        ({"lora_name": NAME, "lora_path": str(adapters[0].folder)}, 400, "is the name of the base"),
        ({"lora_name": "a", "lora_path": str(adapters[0].folder), "load_inplace": True}, 400, "load_inplace"),
        ({"lora_path": str(adapters[0].folder)}, 400, "lora_name"),
    ]:
        answer = http.post("/v1/load_lora_adapter", json=row)
        assert answer.status_code == status and message in answer.text, answer.text
    assert http.get("/v1/models").json() == before


def test_an_adapter_of_peft_without_a_note_is_taken_where_it_fits(http, root, tuned):
    tuned[0].model.save_pretrained(root / "foreign")
    assert not (root / "foreign" / "evolvent.json").exists()
    row = {"lora_name": "foreign", "lora_path": "foreign"}
    assert http.post("/v1/load_lora_adapter", json=row).status_code == 200
    http.post("/v1/unload_lora_adapter", json={"lora_name": "foreign"})
    settings = json.loads((root / "foreign" / "adapter_config.json").read_text())
    (root / "foreign" / "adapter_config.json").write_text(json.dumps(settings | {"r": 4}))
    refused = http.post("/v1/load_lora_adapter", json=row)
    assert refused.status_code == 400 and "wrong shape" in refused.json()["error"]["message"]


def test_the_routes_ask_for_the_token_and_are_there_with_a_root_alone(root, policy, adapters):
    row = {"lora_name": "a", "lora_path": str(adapters[0].folder)}
    with policy_server(policy, reload=root, access=build_access("127.0.0.1", token=TOKEN)) as server:
        address = server.url.removesuffix("/v1")
        for path in ("/v1/load_lora_adapter", "/load_lora_adapter", "/v1/unload_lora_adapter"):
            assert httpx2.post(f"{address}{path}", json=row, trust_env=False, timeout=60).status_code == 401
        assert server.face._adapters.names == []
    with policy_server(policy) as server:
        path = f"{server.url}/load_lora_adapter"
        assert httpx2.post(path, json=row, trust_env=False, timeout=60).status_code == 404


def test_other_weights_of_the_base_end_its_adapters(root, policy, adapters, served, http):
    with Endpoint(served.url, NAME, tokens=True) as endpoint:
        endpoint.load_adapter(adapters[0])
        policy.save(root / "whole")
        endpoint.load_weights(root / "whole")
        assert endpoint.models() == [NAME]
        byte_policy(seed=5).save(root / "others")
        endpoint.load_weights(root / "others")
        refused = http.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": str(adapters[0].folder)})
        assert "the adapter's base differs from the served one" in refused.json()["error"]["message"]
        endpoint.load_weights(root / "whole")
        endpoint.load_adapter(adapters[0])


def test_a_base_of_half_precision_is_known_by_its_rounded_weights(root, policy, tuned, adapters):
    half = policy.clone()
    half.model.to(torch.bfloat16)
    with (
        policy_server(half, reload=root) as server,
        Endpoint(server.url, NAME, tokens=True, processed=True) as endpoint,
    ):
        check_served_adapter(endpoint, adapters[0], tuned[0], wait_s=10)


def test_another_base_is_noticed_by_what_it_samples(root, policy, tuned, adapters):
    """A server that compares no digests: the adapter's note is taken away."""
    note = adapters[0].folder / "evolvent.json"
    text = note.read_text()
    note.unlink()
    try:
        with (
            policy_server(train(byte_policy(seed=9), seed=3), reload=root) as server,
            Endpoint(server.url, NAME, tokens=True, processed=True) as endpoint,
            pytest.raises(ev.ConfigError, match=r"serves another base.*expected at most 0\.1.*--hand_over_as whole"),
        ):
            check_served_adapter(endpoint, adapters[0], tuned[0], wait_s=10)
    finally:
        note.write_text(text)


def test_the_adapter_used_longest_ago_makes_room(tuned):
    async def play() -> list[list[str]]:
        table: AdapterTable[PolicyDialect] = AdapterTable(max_loaded=2)
        names = []
        for name in ("a", "b", "c"):
            generator = Generator(tuned[0], ev.LocalEngine(tuned[0], slots=2))
            await table.add(name, generator, lambda generator, name=name: PolicyDialect(generator, name))
            assert table.find("a") is not None
            names.append(table.names)
        await table.close()
        return names

    assert asyncio.run(play()) == [["a"], ["b", "a"], ["c", "a"]]


def test_an_adapter_is_written_once_alone_and_opens_as_a_policy(tmp_path, policy, tuned):
    policy.save(tmp_path / "base")
    based = train(load_policy(tmp_path / "base"), seed=0)
    publisher = AdapterPublisher(tmp_path / "weights")
    adapter = publisher.publish(based)
    assert publisher.publish(based) == adapter and isinstance(adapter, ServedAdapter)
    assert len(list((tmp_path / "weights" / "snapshots").glob("step-*"))) == 1
    num_weights = sum(weight.numel() for weight in based.model.parameters() if weight.requires_grad)
    assert 4 * num_weights < count_folder_bytes(adapter.folder) < 4 * num_weights + 4096
    again = load_policy(adapter.folder)
    assert again.version == 1 and policy_fingerprint(again) == policy_fingerprint(based)
    other = publisher.publish(train(load_policy(tmp_path / "base"), seed=4))
    assert other.name != adapter.name and other.folder != adapter.folder, "the same version of other weights"
