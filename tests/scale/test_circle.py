"""Any Hugging Face model goes round the circle: collect, flatten, fit, save, and load with transformers alone."""

import json
import logging

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen3Config,
)

import evolvent as ev
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.learn.token_sequences import flatten
from evolvent.models.policy import load_policy
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from tests.models.test_dialects import CHATML, byte_tokenizer

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 192,
}


class Echo(ev.TextWorld):
    """Say the word that you are told, twice."""

    name, horizon, instructions, run_in_thread = "echo", 2, "repeat", False

    def specs(self):
        return [{"word": word} for word in ("aa", "ab", "ba", "bb", "ac", "ca", "bc", "cb")]

    def play(self, spec):
        said = yield f"say {spec['word']}"
        said = yield "again" if said == spec["word"] else "no"
        return float(said == spec["word"])

    def expert(self, task):
        return [task.spec["word"]] * 2


def folder_of(path, config_class, **changes):
    """A random model with a chat template and a tokenizer of bytes, as somebody would download it."""
    tokenizer = byte_tokenizer(CHATML, ["<|im_start|>", "<|im_end|>"])
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    config = config_class(vocab_size=len(tokenizer) + 6, **ids, **{**SHAPE, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def go_round(path, folder):
    """Collect, learn what was done, save; returns (the run's folder, the trajectories, the learned policy)."""
    world, policy = Echo(), load_policy(path)
    train = ev.TrainConfig(max_steps=2, batch_tokens=256)
    tasks = [ev.Task("echo", "1", spec, "echo") for spec in world.specs()]
    with ev.local_run(folder, [world], train=train, slots=4) as run:
        run._verbs.max_tokens = 5
        tried = run.collect(policy, [ev.Start(task, n) for task in tasks[:3] for n in (0, 1)])
        learned = run.fit(policy, [*ev.collect_demonstrations([world], tasks), *tried], ev.weighted_nll)
        learned.save(folder / "model")
    return tried, policy, learned


# RoPE that depends on the length of the text: keys cannot be kept.
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16}
KINDS = {
    "qwen3": (Qwen3Config, {}),
    "sliding": (MistralConfig, {"sliding_window": 16}),
    "gemma2": (Gemma2Config, {"sliding_window": 16, "query_pre_attn_scalar": 8}),
    "gpt2": (GPT2Config, {}),
    "mamba": (MambaConfig, {"state_size": 4}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_hugging_face_model_goes_round_the_circle(kind, tmp_path):
    config_class, changes = KINDS[kind]
    tried, policy, learned = go_round(folder_of(tmp_path / "hub", config_class, **changes), tmp_path / "run")
    assert [t.error for t in tried] == [None] * 6
    assert policy.dialect.name == "chat" and learned.version == policy.version + 1
    for trajectory in tried:  # what was learned is what was sampled, token by token
        (sequence,) = flatten([trajectory], policy.dialect, instructions=lambda _: "repeat", context=192).sequences
        assert sequence.ids.tolist() == [i for g in trajectory.generations for i in g.ids.tolist()]
        with torch.inference_mode():
            logits = policy.model(torch.from_numpy(sequence.ids.astype(np.int64))[None]).logits[0].float()
        at = np.flatnonzero(sequence.sampled)
        wanted = logits.log_softmax(-1)[at - 1, sequence.ids[at].astype(np.int64)]
        assert np.allclose(wanted, sequence.logprobs[at], atol=1e-4)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    ids = torch.arange(12)[None]
    with torch.inference_mode():
        assert torch.equal(plain(ids).logits, learned.model(ids).logits)
        assert not torch.equal(plain(ids).logits, policy.model(ids).logits), "it has learned"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert tokenizer.chat_template == CHATML
    assert tokenizer.get_vocab() == policy.tokenizer.get_vocab()


def test_a_model_that_cannot_share_prefixes_is_computed_whole_with_one_line(tmp_path, caplog):
    policy = load_policy(folder_of(tmp_path / "hub", LlamaConfig, rope_parameters=DYNAMIC))
    verbs = LocalBackend({"echo": Echo()}, slots=4)
    with caplog.at_level(logging.WARNING):
        engine = verbs.serve_policy(policy)
        assert verbs.serve_policy(policy) is engine
    assert isinstance(engine, RecomputeEngine)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "evolvent.scale.local_backend"]
    assert "prefixes are not shared" in line and "cannot share prefixes" in line


def test_counts_go_on_when_the_engine_changes(tmp_path):
    shares = load_policy(folder_of(tmp_path / "a", LlamaConfig))
    whole = load_policy(folder_of(tmp_path / "b", LlamaConfig, rope_parameters=DYNAMIC))
    verbs = LocalBackend({"echo": Echo()}, panel=EvaluationPanel(limit=2), slots=4)
    assert isinstance(verbs.serve_policy(shares), LocalEngine)
    totals = []
    for policy in (shares, whole, shares):
        engine = verbs.serve_policy(policy)
        engine.submit(ev.SampleAsk(None, [1, 2, 3], 4))
        while engine.pending():
            engine.poll()
        totals.append(verbs.usage()["generated"])
    assert totals == [4, 8, 12]


@pytest.mark.parametrize("change", [{"slots": 0}, {"max_tokens": 0}])
def test_verbs_that_cannot_work_are_refused(change):
    with pytest.raises(ev.ConfigError, match="got 0, expected 1 or more"):
        LocalBackend({"echo": Echo()}, **change)


def test_tokens_of_a_fit_come_before_the_updates_of_the_config(tmp_path):
    world = ev.Lookup()
    shown = ev.collect_demonstrations([world], world.tasks("train", "seen")[:5])
    with ev.local_run(tmp_path, [world], train=ev.TrainConfig(max_steps=50, batch_tokens=256)) as run:
        run.fit(ev.make_policy([world]), shown, ev.weighted_nll, tokens=100)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    learned = [row["tokens"] for row in rows if row["kind"] == "fit"]
    assert sum(learned) >= 100 > sum(learned[:-1])
