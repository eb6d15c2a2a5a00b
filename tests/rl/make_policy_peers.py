"""Makes `policy_peers.json`: what trl and torchrl compute from the same random tensors. Needs both; not run by tests.

python tests/learn/make_policy_peers.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

PLACE = Path(__file__).with_name("policy_peers.json")
LENGTHS = (3, 1, 5, 2)
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "beta": 0.04, "epsilon_low": 0.2, "epsilon_high": 0.2},
    "dr_grpo": {"loss_type": "dr_grpo", "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2},
    "dapo": {"loss_type": "bnpo", "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.28},
    "gspo": {"loss_type": "grpo", "beta": 0.0, "epsilon_low": 0.03, "epsilon_high": 0.04, "level": "sequence"},
    "cispo": {"loss_type": "cispo", "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 1.3},
}


def trl_losses(given: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Loss and gradient of trl's GRPO trainer, its model replaced by the log-probabilities themselves."""
    from trl import GRPOTrainer

    found = {}
    for name, case in CASES.items():
        logprobs = given["logprobs"].clone().requires_grad_()
        args = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
        trainer = MagicMock(
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=None,
            beta=case["beta"],
            args=args,
            use_vllm=False,
            importance_sampling_level=case.get("level", "token"),
            loss_type=case["loss_type"],
            epsilon_low=case["epsilon_low"],
            epsilon_high=case["epsilon_high"],
            max_completion_length=7,
            current_gradient_accumulation_steps=1,
            _entropy_bonus_enabled=False,
            aux_loss_enabled=False,
            use_adaptive_entropy=False,
            _metrics=defaultdict(lambda: defaultdict(list)),
        )
        trainer._get_per_token_logps_and_entropies.return_value = (logprobs, torch.zeros_like(logprobs), None)
        trainer.accelerator.num_processes = 1
        trainer.accelerator.gather.side_effect = lambda tensor: tensor
        empty = torch.zeros(len(LENGTHS), 0)
        inputs = {
            "prompt_ids": empty,
            "prompt_mask": empty,
            "completion_ids": torch.zeros_like(logprobs),
            "completion_mask": given["mask"],
            "advantages": given["advantages"],
            "old_per_token_logps": given["old"],
            "ref_per_token_logps": given["reference"],
            "num_items_in_batch": given["mask"].sum(),
        }
        loss = GRPOTrainer._compute_loss(trainer, None, inputs)
        loss.backward()
        assert logprobs.grad is not None
        found[name] = {"loss": loss.item(), "gradient": logprobs.grad.tolist()}
    return found


def torchrl_ppo(generator: torch.Generator) -> dict[str, Any]:
    """torchrl's clipped PPO loss over a categorical policy, with value clipping and entropy."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor
    from torchrl.objectives import ClipPPOLoss

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logits, action = drawn(6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    values, old_values, returns, advantage = (drawn(6) for _ in range(4))
    chosen = torch.log_softmax(logits, -1)[range(6), action]
    old = chosen + 0.3 * drawn(6)
    actor = ProbabilisticActor(
        TensorDictModule(torch.nn.Identity(), ["logits"], ["logits"]),
        ["logits"],
        distribution_class=torch.distributions.Categorical,
    )
    critic = TensorDictModule(torch.nn.Identity(), ["said"], ["state_value"])
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_coeff=0.01,
        critic_coeff=0.5,
        loss_critic_type="l2",
        clip_value=0.2,
        normalize_advantage=False,
    )
    loss.set_keys(sample_log_prob="old", value="state_value")
    batch = TensorDict(
        {
            "logits": logits,
            "said": values[:, None],
            "action": action,
            "old": old,
            "advantage": advantage[:, None],
            "value_target": returns[:, None],
            "state_value": old_values[:, None],
        },
        [6],
    )
    found = loss(batch)
    names = ("loss_objective", "loss_critic", "loss_entropy")
    tensors = {"logits": logits, "action": action, "old": old, "values": values, "old_values": old_values}
    tensors |= {"returns": returns, "advantages": advantage}
    return {
        "given": {name: tensor.tolist() for name, tensor in tensors.items()},
        "expected": {name: found[name].item() for name in names},
    }


def torchrl_gae(generator: torch.Generator) -> dict[str, Any]:
    """torchrl's estimator on one buffer of three episodes, the last one truncated."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    def drawn() -> torch.Tensor:
        return torch.randn(9, 1, generator=generator, dtype=torch.float64)

    value, following, reward = drawn(), drawn(), drawn()
    terminated = torch.tensor([0, 0, 1, 0, 1, 0, 0, 0, 0], dtype=torch.bool)[:, None]
    done = terminated.clone()
    done[-1] = True
    inside = ~done[:-1, 0]
    following[:-1][inside] = value[1:][inside]
    advantage, target = generalized_advantage_estimate(0.9, 0.8, value, following, reward, done, terminated)
    tensors = {"value": value, "reward": reward, "final": following[-1:], "advantage": advantage, "target": target}
    return {name: tensor[:, 0].tolist() for name, tensor in tensors.items()}


def main() -> None:
    generator = torch.Generator().manual_seed(20)
    shape = (len(LENGTHS), max(LENGTHS))

    def drawn(scale: float) -> torch.Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    logprobs = -drawn(1.0).abs()
    given = {
        "logprobs": logprobs,
        "old": logprobs + drawn(0.3),
        "reference": logprobs + drawn(0.5),
        "advantages": torch.randn(shape[0], generator=generator, dtype=torch.float64),
        "mask": (torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None]).double(),
    }
    made = {name: version(name) for name in ("trl", "torchrl", "torch")}
    groups = {"given": {name: tensor.tolist() for name, tensor in given.items()}, "expected": trl_losses(given)}
    rows = {"made_with": made, "groups": groups, "ppo": torchrl_ppo(generator), "gae": torchrl_gae(generator)}
    PLACE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
