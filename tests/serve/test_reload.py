"""Weights that a served policy takes over: what is taken, what is refused, and that a reply is of one version."""

from __future__ import annotations

import asyncio
import json
import shutil

import httpx2
import pytest
import torch

import evolvent as ev
from evolvent.errors import (
    ConfigError,
    Incomplete,
    ShapeMismatch,
    UnsafeFile,
    UnsafePath,
    VocabularyMismatch,
    WeightsChanged,
)
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import load_policy, quantize_base
from evolvent.serve.openai.generator import Generator, policy_fingerprint
from evolvent.serve.openai.reload import load_replacement, parse_reload
from evolvent.serve.openai.reply import ReplyFormat
from evolvent.serve.openai.request import SamplingSpec
from evolvent.serve.openai.writing import ReplyWriter
from tests.learn.byte_policy import byte_policy
from tests.serve.command import command, expect_output

TOKEN = "a-token-of-24-characters"


@pytest.fixture(scope="module")
def policy():
    return byte_policy(seed=1)


@pytest.fixture
def root(tmp_path, policy):
    """A folder that weights are taken from, with those of a later version in it, and one beside it."""
    for folder in (tmp_path / "root" / "later", tmp_path / "beside"):
        byte_policy(seed=2).next_version().save(folder)
    return tmp_path / "root"


def test_a_folder_is_taken_by_its_path_or_its_name(root, policy):
    later = load_policy(root / "later")
    for name in ("later", "later/", str(root / "later")):
        found = load_replacement(root, name, policy)
        assert found.version == 1 and found.value_head is None
        assert policy_fingerprint(found) == policy_fingerprint(later) != policy_fingerprint(policy)


def test_it_is_brought_to_the_precision_that_is_served(root, policy):
    half = policy.clone()
    half.model.to(torch.bfloat16)
    assert {weight.dtype for weight in load_replacement(root, "later", half).model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "name", ["../beside", "later/../../beside", "%2e%2e/beside", "/etc", "~", ".", "linked", "a\0b"]
)
def test_nothing_outside_the_root_is_read(root, policy, name):
    (root / "linked").symlink_to(root.parent / "beside")
    with pytest.raises(UnsafePath):
        load_replacement(root, name, policy)
    outside = r"outside of the one that this server .*: got .*beside.*below the folder of its --reload"
    with pytest.raises(UnsafePath, match=outside):
        load_replacement(root, str(root.parent / "beside"), policy)


def test_neither_is_a_file_that_a_folder_points_to(root, policy):
    (root / "later" / "model.safetensors").unlink()
    (root / "later" / "model.safetensors").symlink_to(root.parent / "beside" / "model.safetensors")
    with pytest.raises(UnsafePath, match=r"model\.safetensors is outside the folder"):
        load_replacement(root, "later", policy)
    (root / "later" / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "../../beside/model.safetensors"}}
    (root / "later" / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(UnsafePath, match="beside"):
        load_replacement(root, "later", policy)
    (root / "later" / "model.safetensors.index.json").write_text("[]", encoding="utf-8")
    with pytest.raises(Incomplete, match="is not an index of weights"):
        load_replacement(root, "later", policy)


def test_only_other_weights_of_the_same_model_are_taken(root, policy):
    adapt(load_policy(root / "later"), AdapterConfig(kind="lora", rank=2), seed=0).save(root / "adapter")
    wide = byte_policy(context=64)
    wide.model.config.intermediate_size = 48
    type(wide.model)(wide.model.config).save_pretrained(root / "wide")
    wide.tokenizer.save_pretrained(root / "wide")
    ev.tiny_policy(["go", "left"], context=64).save(root / "words")
    shutil.copytree(root / "later", root / "pickled")
    (root / "pickled" / "model.safetensors").rename(root / "pickled" / "pytorch_model.bin")
    refused = {
        "adapter": ConfigError,
        "wide": ShapeMismatch,
        "words": VocabularyMismatch,
        "pickled": UnsafeFile,
        "missing": ConfigError,
    }
    for name, kind in refused.items():
        with pytest.raises(kind):
            load_replacement(root, name, policy)


def test_weights_of_four_bits_count_by_the_shape_of_their_floats(root, policy):
    """A model of the same shapes is taken over, and another one is still refused."""
    quantized = quantize_base(policy)
    assert load_replacement(root, "later", quantized).version == 1
    wide = byte_policy(context=64)
    wide.model.config.intermediate_size = 48
    type(wide.model)(wide.model.config).save_pretrained(root / "wide")
    wide.tokenizer.save_pretrained(root / "wide")
    with pytest.raises(ShapeMismatch, match=r"mlp\.\w+\.weight differs"):
        load_replacement(root, "wide", quantized)


def test_fields_of_sglang_are_taken_where_they_say_what_is_done():
    assert parse_reload({"model_path": "a", "load_format": "auto", "flush_cache": True}).model_path == "a"
    for row in (
        [],
        {},
        {"model_path": ""},
        {"model_path": "a", "abort_all_requests": True},
        {"model_path": "a", "b": 1},
    ):
        with pytest.raises(ConfigError):
            parse_reload(row)


def test_no_reply_has_parts_of_two_versions(policy):
    """A stream whose weights are replaced after its first part ends with an error; the next is of the new weights."""
    other = byte_policy(seed=2).next_version()
    wanted = SamplingSpec(ev.Sampling(), 60, (), (3,))

    async def play():
        async with Generator(policy, ev.LocalEngine(policy, slots=4)) as generator:
            form = ReplyFormat(True, "m", str, with_ids=True)
            writing = ReplyWriter(generator, policy.dialect, wanted, form)
            whole = await writing.write_all([[5, 6, 7]])
            assert len(whole["choices"][0]["token_ids"]) == 60, "long enough to be replaced in its middle"
            with pytest.raises(WeightsChanged, match="the weights changed while the reply was generated"):
                async for _ in writing.stream_events([[5, 6, 7]], usage=False):
                    if generator.fingerprint == policy_fingerprint(policy):
                        await generator.sync(other)
            return [event async for event in writing.stream_events([[5, 6, 7]], usage=False)]

    later = asyncio.run(play())
    assert {event["system_fingerprint"] for event in later} == {policy_fingerprint(other)}


def test_the_route_of_the_command(root, policy):
    policy.save(root.parent / "first")
    words = ("--policy", root.parent / "first", "--reload", root)
    with command(*words, token=TOKEN, OMP_NUM_THREADS="1") as server:
        expect_output(server, "/update_weights_from_disk takes weights from")
        with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as stranger:
            assert stranger.post("/update_weights_from_disk", json={"model_path": "later"}).status_code == 401
        bearer = {"authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(base_url=server.url, timeout=60, trust_env=False, headers=bearer) as http:

            def post(row):
                return http.post("/update_weights_from_disk", json=row)

            def writer():
                return http.get("/v1/models").json()["data"][0]["system_fingerprint"]

            before = writer()
            for row, status, code in [
                ({"model_path": "../beside"}, 403, "unsafe_path"),
                ({"model_path": "none"}, 400, None),
                ({}, 400, None),
                ({"model_path": "later", "load_format": "pt"}, 400, None),
            ]:
                answer = post(row)
                assert answer.status_code == status and answer.json()["success"] is False and answer.json()["message"]
                assert answer.json()["error"]["code"] == code
            assert writer() == before == policy_fingerprint(policy)
            told = post({"model_path": str(root / "later")}).json()
            assert (told["success"], told["num_paused_requests"]) == (True, 0)
            assert writer() == told["system_fingerprint"] == policy_fingerprint(load_policy(root / "later"))
            body = {"model": "first", "prompt": [5, 6], "max_tokens": 2}
            assert http.post("/v1/completions", json=body).json()["system_fingerprint"] == told["system_fingerprint"]


def test_without_a_root_there_is_no_route(root, policy):
    policy.save(root.parent / "first")
    with command("--policy", root.parent / "first", OMP_NUM_THREADS="1") as server:
        answer = httpx2.post(
            f"{server.url}/update_weights_from_disk", json={"model_path": "later"}, trust_env=False, timeout=60
        )
    assert answer.status_code == 404
