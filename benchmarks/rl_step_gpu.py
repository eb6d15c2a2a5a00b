"""A step of reinforcement on a CUDA device: a 0.5B shape with random weights, beside what the device could do.

Playing, looking, credit and learning are timed apart, with the device waited for at both ends, and each stands beside
its limit: what the same work takes where every matrix product runs at the rate of large ones, and where every byte that
must be read (weights once a forward, keys and values once a token) comes at the rate of a large copy. Both rates are
measured in the same run. Beside playing stands the `generate` of transformers: the same weights, prompts, number of
rows and tokens, before and after; the ratio is over the better of the two. A second shape has long prompts, which rows
that share beginnings feed once (`learn/prefix_sharing.py`): there both layouts are measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.reporting import about
from benchmarks.rl_step_work import CLIP, RATE, practising
from benchmarks.train_shapes import SIZES, Size
from evolvent.engine.fused import GraphRecorder
from evolvent.learn.cost import Cost
from evolvent.learn.learner import TrainConfig
from evolvent.learn.monitor import measure_gemm_ceiling
from evolvent.models.dialects import Words
from evolvent.models.policy import Policy
from evolvent.models.tiny import word_tokenizer
from evolvent.trajectory import Trajectory, sample_rng

__all__ = ["Work", "limits", "long_prompts", "on_a_device"]

WARM = 1  # steps before the clocks count
PHASES = ("play", "look", "credit", "learn")


@dataclass(frozen=True)
class Work:
    """A step: tasks x samples episodes of a model, prompts of so many words and so many tokens written."""

    size: Size
    tasks: int = 32
    samples: int = 16
    prompt: int = 125
    written: int = 256
    steps: int = 4
    micro: int = 16_384
    layout: str = "bucketed"

    @property
    def context(self) -> int:
        return self.prompt + self.written + 3  # marks around the prompt

    def policy(self, device: torch.device) -> Policy:
        """Random weights in bfloat16, and a word for every logit."""
        made = self.size.policy(context=self.context, device=str(device))
        made.model.to(torch.bfloat16)
        others = len(word_tokenizer(["w0"])) - 1
        tokenizer = word_tokenizer([f"w{n}" for n in range(self.size.words - others)], context=self.context)
        return replace(made, tokenizer=tokenizer, dialect=Words(tokenizer))

    def prompts(self, seed: int) -> list[str]:
        rng = sample_rng(seed, "rl step gpu")
        drawn = rng.integers(0, self.size.words // 2, (self.tasks, self.prompt))
        return [" ".join(f"w{n}" for n in row) for row in drawn]


@dataclass
class Watch:
    """Seconds of each phase of each step, the device waited for at both ends."""

    device: torch.device
    steps: list[dict[str, float]] = field(default_factory=list)

    @contextmanager
    def on(self, phase: str) -> Iterator[None]:
        wait(self.device)
        began = time.perf_counter()
        yield
        wait(self.device)
        self.steps[-1][phase] = time.perf_counter() - began


def wait(device: torch.device) -> None:
    """For all that was asked of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ours(policy: Policy, work: Work, *, device: torch.device, seed: int) -> tuple[Watch, list[Trajectory]]:
    """The steps of `methods/grpo.py`; returns what each took, and the episodes of the last."""
    train = TrainConfig(
        lr=RATE,
        weight_decay=0.0,
        final_lr_ratio=1.0,
        max_grad_norm=CLIP,
        batch_tokens=work.micro,
        dtype="bfloat16_weights",
        layout=work.layout,  # type: ignore[arg-type]
    )
    watch, played = Watch(device), list[Trajectory]()
    with practising(
        policy,
        work.prompts(seed),
        steps=work.steps + WARM,
        samples=work.samples,
        written=work.written,
        train=train,
        seed=seed,
    ) as (practice, tasks, chosen):
        for _ in practice.iterations():
            watch.steps.append({})
            with watch.on("play"):
                played = practice.rollout(practice.next_starts(tasks))
            with watch.on("look"):
                seen = practice.score(played)
            with watch.on("credit"):
                credit = seen.estimate_advantages(chosen.estimator)
            with watch.on("learn"):
                practice.update(seen, credit)
    return watch, played


@contextmanager
def counted() -> Iterator[list[bool]]:
    """Whether each forward of the engine inside was replayed; nothing where none are recorded (on a CPU)."""
    found, forward = list[bool](), GraphRecorder.forward

    def noted(recorder: GraphRecorder, *given: Any, **named: Any) -> bool:
        found.append(forward(recorder, *given, **named))
        return found[-1]

    with patch.object(GraphRecorder, "forward", noted):
        yield found


def generated(policy: Policy, work: Work, *, device: torch.device, seed: int) -> float:
    """Tokens a second of the `generate` of transformers, sampling at temperature 1."""
    asked = [policy.dialect.open("", prompt) for prompt in work.prompts(seed) for _ in range(work.samples)]
    ids = torch.tensor(asked, device=device)
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": work.written}
    torch.manual_seed(seed)
    wait(device)
    began = time.perf_counter()
    with torch.inference_mode():
        out = policy.model.eval().generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=0,
            eos_token_id=sorted(policy.dialect.stop_ids),
            **settings,
        )
    wait(device)
    new = out[:, ids.shape[1] :]
    return int((new != 0).sum()) / (time.perf_counter() - began)


def copy_rate(device: torch.device) -> float:
    """Bytes a second that a large copy on the device reads and writes."""
    size = 2**30 if device.type == "cuda" else 2**26
    left, right = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    left.random_()
    times = []
    for _ in range(8):
        wait(device)
        began = time.perf_counter()
        right.copy_(left)
        wait(device)
        times.append(time.perf_counter() - began)
    return 2.0 * size / min(times)


def limits(
    cost: Cost, policy: Policy, lengths: Sequence[tuple[int, int]], *, tasks: int, flops: float, bandwidth: float
) -> dict[str, float]:
    """Seconds that the phases of one step take at least.

    Args:
        cost: of forward and backward. lengths: tokens read and written of each episode. tasks: prompts, each of which
            is read once. flops, bandwidth: operations and bytes a second of the device.
    """
    config, weight = policy.model.config, next(policy.model.parameters())
    held = sum(w.numel() for w in policy.model.parameters()) * weight.element_size()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * head * weight.element_size()
    read, written = (np.array(each, np.float64) for each in zip(*lengths, strict=True))
    prompts = float(read.mean())
    play = cost.count_operations(tasks * prompts, tasks, prompts) / 3 / flops
    for step in range(1, int(written.max())):  # a text's first token follows from its prompt
        live = read[written > step] + step
        work = cost.count_operations(len(live), len(live), 2 * float(live.mean())) / 3  # one query looks at all keys
        play += max((held + token * float(live.sum())) / bandwidth, work / flops)
    fed = float((read + written).sum())
    whole = cost.count_operations(fed, float(written.sum()), float(((read + written) ** 2).sum()) / fed)
    return {"play": play, "look": whole / 3 / flops, "learn": whole / flops}


def long_prompts(*, seed: int, quick: bool, device: str = "cuda", work: Work | None = None) -> dict[str, Any]:
    """The same figures where prompts are most of what is read, with rows apart and with shared ones."""
    few = {"steps": 1, "written": 32} if quick else {}
    work = work or replace(Work(SIZES["0.5B"], tasks=8, samples=16, prompt=1000, written=128, steps=3), **few)
    kept = ("step_s", "seconds", "written", "work", "raw")  # limits are of rows apart
    found = dict[str, Any]()
    for layout in ("bucketed", "shared"):
        one = on_a_device(seed=seed, quick=quick, device=device, work=replace(work, layout=layout), peer=False)
        found[layout] = {name: one[name] for name in kept}
    apart, shared = (found[layout]["seconds"] for layout in ("bucketed", "shared"))
    return {
        **found,
        "faster": {phase: round(apart[phase] / shared[phase], 2) for phase in ("look", "learn")},
        "step_faster": round(found["bucketed"]["step_s"] / found["shared"]["step_s"], 2),
    }


def on_a_device(
    *, seed: int, quick: bool, device: str = "cuda", work: Work | None = None, peer: bool = True
) -> dict[str, Any]:
    """The figures of one shape.

    Args:
        peer: the `generate` of transformers is measured beside it.
    """
    where = torch.device(device)
    work = work or (Work(SIZES["0.5B"], steps=1, written=64) if quick else Work(SIZES["0.5B"]))
    flops, bandwidth = measure_gemm_ceiling(where, torch.bfloat16), copy_rate(where)
    policy = work.policy(where)
    cost, theirs = Cost.from_model(policy.model), list[float]()
    if peer:
        generated(policy, replace(work, written=8), device=where, seed=seed)  # libraries load, and choose their kernels
        theirs.append(_told(lambda: generated(policy, work, device=where, seed=seed)))
    with counted() as replayed:
        watch, played = ours(policy, work, device=where, seed=seed)
    if peer:
        theirs.append(_told(lambda: generated(policy, work, device=where, seed=seed)))
    steps = watch.steps[WARM:]
    took = {phase: statistics.median(step[phase] for step in steps) for phase in PHASES}
    lengths = [(work.context - work.written, one.count_generated_tokens()) for one in played]
    least = limits(cost, policy, lengths, tasks=work.tasks, flops=flops, bandwidth=bandwidth)
    written, whole = sum(count for _, count in lengths), sum(took.values())
    rate = written / took["play"]
    peak = torch.cuda.max_memory_allocated(where) / 2**30 if where.type == "cuda" else 0.0
    return {
        "benchmark": "rl_step",
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "rollout_tokens_per_s": round(rate),
        "generate_tokens_per_s": [round(each) for each in theirs],
        "over_generate": round(rate / max(theirs), 2) if theirs else None,
        "step_s": round(whole, 3),
        "seconds": {phase: round(each, 4) for phase, each in took.items()},
        "share_of_limit": {
            **{phase: round(least[phase] / took[phase], 3) for phase in least},
            "step": round(sum(least.values()) / whole, 3),
        },
        "replayed": round(sum(replayed) / len(replayed), 3) if replayed else None,  # share of forwards, of all steps
        "credit_share": round(took["credit"] / whole, 4),
        "written": written,
        "peak_gib": round(peak, 1),
        "ceiling_tflops": round(flops / 1e12, 1),
        "copy_gb_per_s": round(bandwidth / 1e9),
        "parameters": policy.parameters(),
        "work": {name: value for name, value in vars(work).items() if not isinstance(value, Size)},
        "raw": [{phase: round(each, 4) for phase, each in step.items()} for step in steps],
        "seed": seed,
        "quick": quick,
        **about("torch", "transformers"),
    }


def _told(measure: Callable[[], float]) -> float:
    rate = measure()
    print(f"generate of transformers: {rate:.0f} tokens a second", flush=True)
    return rate
