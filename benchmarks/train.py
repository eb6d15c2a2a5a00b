"""Training speed: real tokens per CPU-second of the Learner, beside a plain loop, the HF Trainer and TRL's SFTTrainer.

    python -m benchmarks.train --json [--quick]

Every side trains the same small model from the same weights on the same synthetic episodes, in float32 with SDPA
attention, fused AdamW, clipping at 1 and one thread. Plain loop and HF Trainer are given the Learner's own batches,
ready made; TRL makes its own, of about as many tokens, grouped by length and by default. A token is real if it is in an
episode, whoever feeds it. Time is CPU time from the first update's beginning to the last one's end, set-up excluded.
Runs are interleaved; ratios are of medians, so over 1 the Learner is faster.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.loader import Stream
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.packing import Batch, collate_padded
from evolvent.learn.parts import Parts, flatten
from evolvent.models.policy import Policy, tiny_policy
from evolvent.trajectory import Step, Task, Trajectory, sample_rng

WORDS = [f"word{number}" for number in range(154)]
ROWS = 12  # of a TRL batch: with episodes of 67 tokens about as many as the Learner's 768 padded tokens


@dataclass(frozen=True)
class Bench:
    """One workload: the policy to start from, the parts to learn, and for how many epochs."""

    policy: Policy
    parts: list[Parts]
    epochs: int
    seed: int

    @property
    def tokens(self) -> int:
        """Real tokens of all epochs."""
        return self.epochs * sum(len(sequence) for sequence in self.parts)

    @property
    def config(self) -> TrainConfig:
        return TrainConfig(epochs=self.epochs, layout="bucketed")

    def batches(self) -> list[Batch]:
        """The Learner's batches of all epochs."""
        stream = Stream([s.feed for s in self.parts], budget=self.config.batch_tokens, seed=self.seed)
        return [collate_padded(self.parts, rows) for epoch in range(self.epochs) for rows in stream.epoch(epoch)]


def workload(*, episodes: int, epochs: int, seed: int) -> Bench:
    """Synthetic episodes like those of the embedded worlds: 40 to 110 tokens, about a third of them actions."""
    rng = sample_rng(seed, "benchmark")
    policy = tiny_policy(WORDS, size="xs", context=256, seed=seed)

    def text(low: int, high: int) -> str:
        return " ".join(rng.choice(WORDS, int(rng.integers(low, high))))

    trajectories = []
    for number in range(episodes):
        steps = tuple(Step(text(4, 11), text(2, 5)) for _ in range(int(rng.integers(3, 9))))
        trajectories.append(Trajectory(f"episode-{number}", Task("synthetic", "1", {"number": number}), steps))
    flat = flatten(trajectories, policy.dialect, instructions=lambda task: "", context=policy.context)
    return Bench(policy, [s for s in flat.parts if 40 <= len(s) <= 110], epochs, seed)


def labelled(batch: Batch) -> dict[str, torch.Tensor]:
    """A batch in the form that transformers trains on: `input_ids` and `labels`, both `[B, T + 1]`."""
    ids = torch.nn.functional.pad(batch.ids, (0, 1))
    labels = torch.full_like(ids, -100)
    rows, places = batch.index // batch.ids.shape[1], batch.index % batch.ids.shape[1] + 1
    ids[rows, places] = batch.targets
    labels[rows, places] = batch.targets
    return {"input_ids": ids, "labels": labels}


def ours(bench: Bench) -> float:
    learner = Learner(bench.policy.clone(), weighted_nll, bench.config, seed=bench.seed)
    began = time.process_time()
    learner.fit(bench.parts)
    return time.process_time() - began


def plain(bench: Bench) -> float:
    """The loop that one would write by hand, on ready batches."""
    model, batches = bench.policy.clone().model.train(), [labelled(batch) for batch in bench.batches()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=len(batches))
    began = time.process_time()
    for batch in batches:
        optimizer.zero_grad()
        model(**batch, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return time.process_time() - began


def shared_arguments(folder: str, bench: Bench) -> dict[str, Any]:
    return {
        "output_dir": folder, "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none",
        "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "optim": "adamw_torch_fused",
        "learning_rate": 4e-3, "adam_beta2": 0.98, "weight_decay": 0.1, "max_grad_norm": 1.0, "warmup_steps": 50,
        "lr_scheduler_type": "linear", "seed": bench.seed, "num_train_epochs": bench.epochs,
    }  # fmt: skip


def timed(trainer: Any) -> float:
    """CPU time from the beginning of a trainer's training to its end."""
    from transformers import PrinterCallback, TrainerCallback

    times: list[float] = []

    def note(self: object, *arguments: Any, **options: Any) -> None:
        times.append(time.process_time())

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(type("Clock", (TrainerCallback,), {"on_train_begin": note, "on_train_end": note}))
    trainer.train()
    return times[-1] - times[0]


def hf_trainer(bench: Bench) -> float:
    """The HF Trainer on the Learner's batches, handed over ready made, one a step."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = {**shared_arguments(folder, bench), "num_train_epochs": 1, "per_device_train_batch_size": 1}
        return timed(
            Trainer(
                model=bench.policy.clone().model,
                args=TrainingArguments(**arguments, remove_unused_columns=False),
                train_dataset=[labelled(batch) for batch in bench.batches()],
                data_collator=lambda items: items[0],
            )
        )


def trl(bench: Bench, strategy: str) -> float:
    """TRL's SFTTrainer on ready ids and labels."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    ids = [sequence.ids.tolist() for sequence in bench.parts]
    labels = [np.where(sequence.weight != 0, sequence.ids, -100).tolist() for sequence in bench.parts]
    with tempfile.TemporaryDirectory() as folder:
        return timed(
            SFTTrainer(
                model=bench.policy.clone().model,
                args=SFTConfig(
                    **shared_arguments(folder, bench),
                    per_device_train_batch_size=ROWS,
                    train_sampling_strategy=strategy,
                    dataset_kwargs={"skip_prepare_dataset": True},
                    max_length=None,
                ),
                train_dataset=Dataset.from_dict({"input_ids": ids, "labels": labels}),
                processing_class=bench.policy.tokenizer,
            )
        )


SIDES: dict[str, Callable[[Bench], float]] = {
    "ours": ours,
    "plain": plain,
    "hf": hf_trainer,
    "trl": lambda bench: trl(bench, "group_by_length"),
    "trl_default": lambda bench: trl(bench, "random"),
}


def measure(bench: Bench, repeats: int, sides: Sequence[str]) -> dict[str, list[float]]:
    """Real tokens per CPU-second of every side, `repeats` times, interleaved; one round before it warms up."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(repeats + 1):
        for name in sides:
            rate = bench.tokens / SIDES[name](bench)
            if number:
                found[name].append(round(rate, 1))
    return found


def report(bench: Bench, rates: dict[str, list[float]]) -> dict[str, Any]:
    median = {name: statistics.median(values) for name, values in rates.items()}
    batches = bench.batches()
    return {
        "benchmark": "train",
        "unit": "real tokens per CPU-second, one thread",
        **{f"over_{name}": round(median["ours"] / rate, 3) for name, rate in median.items() if name != "ours"},
        "median": median,
        "raw": rates,
        "tokens": bench.tokens,
        "epochs": bench.epochs,
        "updates": len(batches),
        "targets_share": round(sum(b.count for b in batches) / bench.tokens, 3),
        "padded_share": round(sum(b.padded for b in batches) / sum(b.ids.numel() for b in batches), 3),
        "parameters": bench.policy.parameters(),
        "seed": bench.seed,
        "versions": {name: version(name) for name in ("torch", "transformers", "trl", "accelerate")},
        "machine": f"{platform.machine()}, Python {platform.python_version()}, 1 thread",
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=str(__doc__).splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--quick", action="store_true", help="a small workload: a smoke test, not a measurement")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    bench = workload(episodes=60 if options.quick else 400, epochs=1 if options.quick else 2, seed=options.seed)
    result = report(bench, measure(bench, 1 if options.quick else 5, list(SIDES)))
    if options.json:
        print(json.dumps(result))
        return
    for name, rate in result["median"].items():
        print(f"{name:12} {rate:10.0f} tokens/cpu-s   ours over it {result['median']['ours'] / rate:.2f}")


if __name__ == "__main__":
    main()
