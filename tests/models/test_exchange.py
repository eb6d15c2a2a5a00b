"""Hugging Face folders in and out: the same bits and logits, tied and untied, sharded, from one stage, by streams."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import exchange_ranks as ranks_do
import pytest
import torch
from exchange_ranks import logits, meta_model, small_config
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from benchmarks.crew import Crew
from evolvent.errors import ConfigError, HashMismatch, Incomplete, NoSpace, ShapeMismatch
from evolvent.learn.checkpoint import CheckpointContent, Checkpointer
from evolvent.models import writing
from evolvent.models.dialects import dialect_for
from evolvent.models.exchange import export_hf, import_hf, write_hf
from evolvent.models.heads import ValueHead
from evolvent.models.policy import Policy, load_policy
from evolvent.models.tiny import word_tokenizer

WORDS = ["go", "take", "north", "lamp"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def policy_of(family: str = "llama", *, tied: bool = True, seed: int = 1) -> Policy:
    """A small policy whose config, generation config and tokenizer say things of their own."""
    config = small_config(family, tied=tied)
    config.house_rule = {"no": ["shoes"]}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.generation_config = GenerationConfig(max_new_tokens=7, bos_token_id=1)
    tokenizer = word_tokenizer(WORDS, context=64)
    tokenizer.chat_template = TEMPLATE
    return Policy(model, tokenizer, dialect_for(tokenizer, "words"), version=3)


def model_tensors(model) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


def saved_folder(policy: Policy, folder: Path, *, files: int = 1) -> Path:
    """As transformers writes it, in one file or several."""
    size = sum(w.numel() * w.element_size() for w in policy.model.parameters())
    policy.model.save_pretrained(folder, max_shard_size=size // files + 1000 if files > 1 else "5GB")
    return folder


# ---------------------------------------------------------------------- in


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_meta_model_is_filled(tmp_path, family, tied):
    policy = policy_of(family, tied=tied)
    model = meta_model(family, tied=tied).to_empty(device="cpu")
    import_hf(saved_folder(policy, tmp_path / "m", files=1 if tied else 3), model)
    assert torch.equal(logits(model), logits(policy.model))
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert list(model_tensors(model)) == list(model_tensors(policy.model))


def test_a_tied_model_reads_either_name(tmp_path):
    """Some folders hold the head and not the embeddings; one stage has the head, the folder the embeddings."""
    policy = policy_of()
    folder = saved_folder(policy, tmp_path / "m")
    last = meta_model("llama")
    last.model.embed_tokens = None
    last.to_empty(device="cpu")
    import_hf(folder, last)
    assert torch.equal(last.lm_head.weight, policy.model.model.embed_tokens.weight)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    ranks_do.save_weights(tensors, folder)
    whole = meta_model("llama").to_empty(device="cpu")
    import_hf(folder, whole)
    assert torch.equal(logits(whole), logits(policy.model))


def test_stages_read_their_own(tmp_path):
    policy = policy_of(tied=False)
    folder = saved_folder(policy, tmp_path / "m")
    stage = meta_model("llama", tied=False)
    stage.model.layers[1], stage.lm_head, stage.model.norm = torch.nn.Identity(), None, torch.nn.Identity()
    stage.to_empty(device="cpu")
    import_hf(folder, stage)
    theirs = model_tensors(policy.model)
    assert all(torch.equal(weight, theirs[name]) for name, weight in model_tensors(stage).items())


def test_other_types_names_and_buffers(tmp_path):
    policy = policy_of("qwen2")
    folder = saved_folder(policy, tmp_path / "m")
    model = meta_model("qwen2").to(torch.bfloat16).to_empty(device="cpu")
    with torch.no_grad():
        model.model.norm.weight.fill_(7)
    import_hf(folder, model, name_in_folder=lambda name: None if name == "model.norm.weight" else name)
    theirs = model_tensors(policy.model)
    for name, weight in model_tensors(model).items():
        assert torch.equal(
            weight, torch.full_like(weight, 7) if name == "model.norm.weight" else theirs[name].bfloat16()
        )
    assert torch.equal(
        model.model.rotary_emb.inv_freq.float(), policy.model.model.rotary_emb.inv_freq.bfloat16().float()
    )


def test_what_does_not_fit_is_named(tmp_path):
    folder = saved_folder(policy_of(tied=False), tmp_path / "m")
    with pytest.raises(ConfigError, match=r"meta device.*embed_tokens.*to_empty"):
        import_hf(folder, meta_model("llama", tied=False))
    with pytest.raises(Incomplete, match=r"weights are missing.*q_proj\.bias"):
        import_hf(folder, meta_model("qwen2", tied=False).to_empty(device="cpu"))
    wide = small_config("llama", tied=False)
    wide.intermediate_size = 40
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(wide)
    with pytest.raises(ShapeMismatch, match=r"mlp\.\w+_proj\.weight.*expected \(40, 16\)"):
        import_hf(folder, model.to_empty(device="cpu"))
    model = meta_model("llama", tied=False).to_empty(device="cpu")
    model.register_buffer("table", torch.zeros(3), persistent=False)
    model.config = None
    with pytest.raises(Incomplete, match=r"cannot restore buffers of the model.*'table'"):
        import_hf(folder, model)


@pytest.fixture(scope="module")
def crew():
    with Crew(4) as four:
        yield four


@pytest.mark.parametrize("tied", [True, False])
def test_sharded_models_are_filled(crew, tmp_path, tied):
    """FSDP2 over four ranks, HSDP, tensor parallel, and both: weights, logits, ties and what each rank reads."""
    policy = policy_of("qwen3", tied=tied)
    folder = saved_folder(policy, tmp_path / "m", files=2)
    expected = logits(policy.model)
    for found in crew.run(ranks_do.imported, str(folder), "qwen3", tied):
        for layout, (said, wrong, one, share) in found.items():
            assert wrong == [] and one == tied, layout
            assert said is None or torch.equal(said, expected) or (said - expected).abs().max() < 2e-6, layout
            assert share < {"fsdp": 0.27, "hsdp": 0.52, "tp": 0.7, "fsdp tp": 0.36}[layout], layout


# ---------------------------------------------------------------------- out


def checkpoint_of(policy: Policy, folder: Path, **more: torch.Tensor) -> Path:
    return (
        Checkpointer(folder)
        .save(5, CheckpointContent({"model": {**model_tensors(policy.model), **more}, "optimizer": {}}))
        .path
    )


def like(policy: Policy) -> Policy:
    """All but the weights, as a training process has it whose model is laid over ranks."""
    return replace(policy, model=ranks_do.on_meta(policy.model))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard_bytes", [5 * 10**9, 3000])
def test_a_checkpoint_becomes_a_folder(tmp_path, family, tied, shard_bytes):
    policy = policy_of(family, tied=tied)
    path = checkpoint_of(policy, tmp_path / "c")
    export_hf(path, like(policy), tmp_path / "out" / "hf", shard_bytes=shard_bytes)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "hf", dtype="auto")
    theirs, ours = model_tensors(found), model_tensors(policy.model)
    assert list(theirs) == list(ours) and all(torch.equal(theirs[n], ours[n]) for n in ours)
    assert torch.equal(logits(found.eval()), logits(policy.model))
    files = sorted(file.name for file in (tmp_path / "out" / "hf").glob("model*"))
    if shard_bytes == 3000:
        assert files[0].startswith("model-00001-of-000") and files[-1] == "model.safetensors.index.json"
        sizes = json.loads((tmp_path / "out" / "hf" / files[-1]).read_text())["metadata"]
        assert sizes == {"total_size": sum(w.numel() * 4 for w in ours.values())}
    else:
        assert files == ["model.safetensors"]
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["hf"]


def test_the_folder_is_what_a_policy_saves(tmp_path):
    """Whatever a policy has beside its weights: the same files with the same content, whoever wrote them."""
    policy = policy_of()
    policy.save(tmp_path / "saved")
    export_hf(checkpoint_of(policy, tmp_path / "c"), like(policy), tmp_path / "hf")
    names = sorted(file.name for file in (tmp_path / "hf").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "saved").iterdir())
    assert {"chat_template.jinja", "generation_config.json", "evolvent.json"} <= set(names)
    for name in names:
        if name.endswith(".json"):
            one, other = (json.loads((tmp_path / where / name).read_text()) for where in ("saved", "hf"))
            assert one == other, name
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["house_rule"] == {"no": ["shoes"]} and config["architectures"] == ["LlamaForCausalLM"]
    loaded = load_policy(tmp_path / "hf")
    assert loaded.version == 3 and loaded.dialect.name == "words" and loaded.tokenizer.chat_template == TEMPLATE
    assert AutoTokenizer.from_pretrained(tmp_path / "hf").get_vocab() == policy.tokenizer.get_vocab()


def test_import_and_export_give_the_same_file(tmp_path):
    policy = policy_of("qwen3", tied=False)
    policy.save(tmp_path / "saved")
    model = meta_model("qwen3", tied=False).to_empty(device="cpu")
    import_hf(tmp_path / "saved", model)
    path = Checkpointer(tmp_path / "c").save(1, CheckpointContent({"model": model_tensors(model)})).path
    export_hf(path, policy, tmp_path / "hf")
    one, other = (load_file(tmp_path / where / "model.safetensors") for where in ("saved", "hf"))
    assert sorted(one) == sorted(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("tied", [True, False])
def test_a_sharded_checkpoint_becomes_a_folder(crew, tmp_path, tied):
    """Saved by FSDP2 x tensor parallelism, and by stages that both have the tied weight, under either name."""
    policy = policy_of("qwen3", tied=tied)
    folder = saved_folder(policy, tmp_path / "m")
    crew.run(ranks_do.saved, str(folder), str(tmp_path / "c"), "qwen3", tied)
    for kind in ("sharded", "stages"):
        (path,) = (tmp_path / "c" / kind).iterdir()
        export_hf(path, like(policy), tmp_path / kind)
        found = AutoModelForCausalLM.from_pretrained(tmp_path / kind)
        theirs = model_tensors(policy.model)
        assert all(torch.equal(weight, theirs[name]) for name, weight in model_tensors(found).items())


def test_a_value_head_goes_beside_the_model(tmp_path):
    policy = replace(policy_of(), value_head=ValueHead(16))
    torch.nn.init.normal_(policy.value_head.outer.weight)
    trained = {f"value_head.{name}": weight + 1 for name, weight in policy.value_head.state_dict().items()}
    export_hf(checkpoint_of(policy, tmp_path / "c", **trained), policy, tmp_path / "hf")
    loaded = load_policy(tmp_path / "hf").value_head
    assert loaded is not None
    assert all(torch.equal(w, trained[f"value_head.{n}"]) for n, w in loaded.state_dict().items())
    export_hf(checkpoint_of(policy, tmp_path / "d"), policy, tmp_path / "own")
    own = load_policy(tmp_path / "own").value_head
    assert own is not None and torch.equal(own.outer.weight, policy.value_head.outer.weight)
    wrong = {"value_head.outer.weight": torch.zeros(2, 16)}
    with pytest.raises(ShapeMismatch, match="the value head of"):
        export_hf(checkpoint_of(policy, tmp_path / "e", **wrong), policy, tmp_path / "no")


def test_weights_in_another_type(tmp_path):
    policy = policy_of()
    path = checkpoint_of(policy, tmp_path / "c")
    export_hf(path, policy, tmp_path / "hf", dtype=torch.bfloat16)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert found.dtype == torch.bfloat16
    ours = model_tensors(policy.model)
    assert all(torch.equal(w, ours[name].bfloat16()) for name, w in model_tensors(found).items())


def test_mixed_types_are_loaded_without_loss(tmp_path):
    policy = policy_of()
    mixed = {n: w.detach().bfloat16() if w.dim() > 1 else w.detach() for n, w in model_tensors(policy.model).items()}
    path = Checkpointer(tmp_path / "c").save(1, CheckpointContent({"model": mixed})).path
    export_hf(path, policy, tmp_path / "hf")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert all(torch.equal(weight, mixed[name].float()) for name, weight in model_tensors(found).items())


def test_frozen_weights_come_from_the_base(tmp_path):
    """A checkpoint has what was trained; the rest is where the policy was loaded from, as long as it is."""
    policy_of().save(tmp_path / "base")
    policy = load_policy(tmp_path / "base")
    with torch.no_grad():
        policy.model.model.norm.weight.add_(1)
    trained = {"model.norm.weight": policy.model.model.norm.weight}
    path = Checkpointer(tmp_path / "c").save(1, CheckpointContent({"model": trained})).path
    export_hf(path, policy, tmp_path / "hf")
    assert torch.equal(logits(load_policy(tmp_path / "hf").model), logits(policy.model))
    with pytest.raises(Incomplete, match=r"lacks tensor 'model\.embed_tokens\.weight'"):
        export_hf(path, replace(policy, base=None), tmp_path / "no")


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    policy = policy_of()
    path = checkpoint_of(policy, tmp_path / "c")
    to = tmp_path / "hf"
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        export_hf(path, policy, tmp_path / "there")
    with pytest.raises(ShapeMismatch, match=r"does not have.*'ghost'"):
        export_hf(checkpoint_of(policy, tmp_path / "d", ghost=torch.ones(1)), policy, to)
    with pytest.raises(ShapeMismatch, match=r"tensor 'model\.embed_tokens\.weight'.*got \(64, 16\)"):
        other = policy_of()
        other.model.config.vocab_size = 65
        export_hf(path, other, to)
    with pytest.raises(Incomplete, match="does not hold a model"):
        export_hf(Checkpointer(tmp_path / "e").save(1, CheckpointContent({"random": {}})).path, policy, to)
    broken = shutil.copytree(path, tmp_path / "f")
    data = bytearray((broken / "model-00000.safetensors").read_bytes())
    data[-1] ^= 1
    (broken / "model-00000.safetensors").write_bytes(bytes(data))
    with pytest.raises(HashMismatch, match=r"changed tensors \['model\."):
        export_hf(broken, policy, to)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "_write_all", full)
    with pytest.raises(NoSpace):
        export_hf(path, policy, to)
    monkeypatch.undo()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c", "d", "e", "f", "there"]
    write_hf(path, policy, tmp_path / "there")
    assert torch.equal(logits(load_policy(tmp_path / "there").model), logits(policy.model))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_is_not_exported_as_a_model(tmp_path):
    peft = pytest.importorskip("peft")
    policy = policy_of()
    path = checkpoint_of(policy, tmp_path / "c")
    tuned = peft.get_peft_model(policy.model, peft.LoraConfig(target_modules=["q_proj"], r=2))
    with pytest.raises(ConfigError, match=r"holds only an adapter: got lora.*Save the policy"):
        export_hf(path, replace(policy, model=tuned), tmp_path / "hf")
