"""Every kind of adapter under FSDP2 and HSDP learns what one process learns, and is gathered whole."""

import adapter_ranks
import numpy as np
import pytest
import torch
from crew import Crew

from evolvent.models.adapters import adapter_tensors, save_adapter
from evolvent.models.tuned import attach_adapter, strip_adapter

KINDS = ("lora", "dora", "ia3", "prefix", "prompt")


def mark_long(kinds, quick):
    """The kinds as parameters, of which those in `quick` are tried in every run."""
    return [pytest.param(kind, marks=[] if kind in quick else [pytest.mark.long]) for kind in kinds]


@pytest.fixture(scope="module")
def crew():
    with Crew(2) as made:
        yield made


def alone(kind, **changes):
    model = adapter_ranks.policy_of(kind, **changes).model
    losses, _ = adapter_ranks.train(model)
    return losses, model


def differences(found, expected):
    return max(abs(one - other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_sharded_equals_one_process(crew, tmp_path, kind):
    expected, model = alone(kind)
    results = crew.run(adapter_ranks.sharded, kind)
    assert max(expected[:-1]) - min(expected) > 1e-3  # something was learned
    for losses, tensors, wrong in results:
        assert differences(losses, expected) <= 2e-6
        assert wrong == []
        whole = adapter_tensors(model)
        assert set(tensors) == set(whole)
        assert all(np.abs(tensors[name] - whole[name].numpy()).max() <= 1e-5 for name in whole)
    gathered = {name: torch.from_numpy(array) for name, array in results[0][1].items()}
    save_adapter(model, tmp_path, tensors=gathered)
    again = attach_adapter(strip_adapter(model), tmp_path)
    ids = torch.arange(7, 27).view(2, 10)
    with torch.inference_mode():
        found, wanted = (each.eval()(input_ids=ids).logits for each in (again, model))
    assert torch.allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("kind", mark_long(KINDS, ("lora", "prefix")))
def test_a_base_in_bfloat16_under_an_adapter_in_float32(crew, kind):
    expected, model = alone(kind, dtype=torch.bfloat16)
    learned = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    assert learned == {torch.float32} and model.get_input_embeddings().weight.dtype == torch.bfloat16
    losses, _, wrong = crew.run(adapter_ranks.sharded, kind, 1, "bfloat16")[0]
    assert wrong == [] and differences(losses, expected) <= 2e-3  # roundings of bfloat16


@pytest.mark.parametrize("kind", ["lora", "prompt"])
def test_low_precision_gathers(crew, kind):
    expected, _ = alone(kind)
    losses, _, wrong = crew.run(adapter_ranks.sharded, kind, 1, "float32", True)[0]
    assert wrong == [] and differences(losses, expected) <= 2e-2


@pytest.mark.parametrize("kind", mark_long(("lora", "dora", "ia3", "prompt"), ("dora", "prompt")))
def test_recomputed_layers(crew, kind):
    """Not with a prefix: a recomputed layer of transformers drops the keys and values that it is given."""
    expected, _ = alone(kind)
    losses, _, wrong = crew.run(adapter_ranks.sharded, kind, 1, "float32", False, True)[0]
    assert wrong == [] and differences(losses, expected) <= 2e-6


@pytest.mark.parametrize("kind", KINDS)
def test_the_learner_over_two_ranks(crew, kind):
    expected, whole = adapter_ranks.small_training(kind, 1)
    for losses, tensors in crew.run(adapter_ranks.small_training, kind, 2):
        assert differences(losses, expected) <= 1e-5
        assert all(np.abs(tensors[name] - whole[name]).max() <= 1e-4 for name in whole)


@pytest.mark.long
def test_hybrid_shards():
    with Crew(4) as four:
        for kind in KINDS:
            expected, _ = alone(kind)
            for losses, _, wrong in four.run(adapter_ranks.sharded, kind, 2):
                assert wrong == [] and differences(losses, expected) <= 2e-6


def test_weights_of_four_bits_below_the_adapter_over_two_ranks(crew):
    """Each rank holds them whole, and the adapter is shared."""
    expected, whole = adapter_ranks.small_training("lora", 1, 4)
    assert expected != adapter_ranks.small_training("lora", 1)[0], "they are not the floats"
    for losses, tensors in crew.run(adapter_ranks.small_training, "lora", 2, 4):
        assert differences(losses, expected) <= 2e-6
        assert all(np.abs(tensors[name] - whole[name]).max() <= 1e-5 for name in whole)
