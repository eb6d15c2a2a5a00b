"""Where an adapter's base is: what is saved twice can be moved, and what is saved over its base can be read."""

from pathlib import Path

import pytest
import torch

from evolvent.models.adapters import AdapterConfig, adapt, adapter_tensors, kind_of
from evolvent.models.policy import Policy, load_policy, tiny_policy

pytest.importorskip("peft")

LORA = AdapterConfig(kind="lora", rank=2)


def moved(policy: Policy) -> Policy:
    """With an adapter that is not where it began."""
    made = adapt(policy, LORA, seed=0)
    with torch.no_grad():
        for weight in made.model.parameters():
            if weight.requires_grad:
                weight.add_(0.1)
    return made


def equal(one: Policy, other: Policy) -> bool:
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        same = torch.equal(one.model(ids).logits, other.model(ids).logits)
    tensors = adapter_tensors(one.model), adapter_tensors(other.model)
    return same and all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


def test_an_adapter_that_was_saved_again_still_moves_with_its_base(tmp_path: Path) -> None:
    made = moved(tiny_policy(["go", "look"], seed=3))
    made.save(tmp_path / "a")
    load_policy(tmp_path / "a").save(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    again = load_policy(tmp_path / "b")
    assert kind_of(again.model) == "lora" and equal(again, made)


def test_an_adapter_that_is_saved_over_its_base_keeps_it(tmp_path: Path) -> None:
    tiny_policy(["go", "look"], seed=3).save(tmp_path / "a")
    made = moved(load_policy(tmp_path / "a"))
    made.save(tmp_path / "a")
    again = load_policy(tmp_path / "a")
    assert kind_of(again.model) == "lora" and equal(again, made)
    made.save(tmp_path / "elsewhere")  # what it was loaded from is no base any more
    assert equal(load_policy(tmp_path / "elsewhere"), made)
