"""`benchmarks.rl_step` on a device: its limits by hand, and the whole of it at a size that a CPU does in a moment."""

import pytest
import torch

from benchmarks.rl_step_gpu import Work, limits, long_prompts, on_a_device
from benchmarks.train_shapes import SIZES
from evolvent.learn.cost import Cost

SMALL = Work(SIZES["0.2M"], tasks=3, samples=4, prompt=10, written=6, steps=2, micro=256)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_every_phase_is_timed_and_compared_with_its_limit(device):
    """That a phase is above its limit is a figure of a quiet machine: the benchmark shows it, no test asserts it."""
    found = on_a_device(seed=0, quick=True, device=device, work=SMALL)
    assert len(found["raw"]) == 2 and all(set(step) == {"play", "look", "credit", "learn"} for step in found["raw"])
    assert found["step_s"] == pytest.approx(sum(found["seconds"].values()), abs=0.01)
    assert 0 < found["written"] <= 3 * 4 * 6 and found["rollout_tokens_per_s"] > 0
    shares = found["share_of_limit"]
    assert set(shares) == {"play", "look", "learn", "step"} and all(share >= 0 for share in shares.values())
    least = sum(shares[phase] * found["seconds"][phase] for phase in ("play", "look", "learn"))
    assert shares["step"] * found["step_s"] == pytest.approx(least, abs=0.002 * found["step_s"] + 0.001)


def test_long_prompts_are_measured_in_both_layouts():
    work = Work(SIZES["0.2M"], tasks=2, samples=4, prompt=40, written=4, steps=1, micro=256)
    found = long_prompts(seed=0, quick=True, device="cpu", work=work)
    assert found["bucketed"]["work"]["layout"] == "bucketed" and found["shared"]["work"]["layout"] == "shared"
    assert found["faster"]["learn"] > 0 and found["step_faster"] > 0


def test_limits_by_hand():
    """Two texts of 3 and 2 tokens behind prompts of 4, on a device of 1000 operations and 100 bytes a second."""
    policy = SMALL.policy(torch.device("cpu"))
    held, token = 2 * policy.parameters(), 2 * 3 * 2 * 16 * 2
    cost = Cost(body=6.0, head=3.0, attention=0.6)
    least = limits(cost, policy, [(4, 3), (4, 2)], tasks=1, flops=1000.0, bandwidth=100.0)
    prompt = (4 * (6 + 0.6 * 4) + 1 * 3) / 3 / 1000
    assert least["play"] == pytest.approx(prompt + (held + token * 10) / 100 + (held + token * 6) / 100)
    fed, squares = 13, 49 + 36
    whole = fed * (6 + 0.6 * squares / fed) + 5 * 3
    assert least["learn"] == pytest.approx(whole / 1000) and least["look"] == pytest.approx(whole / 3000)
    slow = limits(cost, policy, [(4, 3), (4, 2)], tasks=1, flops=1.0, bandwidth=1e12)
    two, one = 2 * (6 + 0.6 * 10) + 2 * 3, 1 * (6 + 0.6 * 12) + 3
    assert slow["play"] == pytest.approx(prompt * 1000 + (two + one) / 3), "where bytes cost nothing"
