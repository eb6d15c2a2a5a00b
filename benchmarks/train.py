"""Training speed: real tokens per CPU-second of the Learner, beside a plain loop, the HF Trainer and TRL's SFTTrainer.

    python -m benchmarks.train [--json] [--quick] [--save] [--device cuda]

Every side trains the same small model from the same weights on the same synthetic episodes, in float32 with SDPA
attention, fused AdamW, clipping at 1 and one thread. Plain loop and HF Trainer are given the Learner's own batches,
ready made; TRL makes its own, of about as many tokens, grouped by length and by default. A token is real if it is in an
episode, whoever feeds it. Time is CPU time from the first update's beginning to the last one's end, set-up excluded.
Runs are interleaved; ratios are of medians, so over 1 the Learner is faster.

Then the same over sizes of model, batch and text, for pre-training and fine-tuning (`benchmarks/train_shapes.py`), and
two ranks against one (`benchmarks/train_ranks.py`). With `--device cuda`: 0.5B and 1.5B shapes in bfloat16, beside the
HF Trainer with the same attention, and the share of the card's measured matrix-product ceiling.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.reporting import RESULTS, about, command_line, finish
from benchmarks.train_gpu import on_a_gpu
from benchmarks.train_ranks import ranks2
from benchmarks.train_shapes import POINTS, Bench, Point, labelled
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import flatten
from evolvent.models.policy import tiny_policy
from evolvent.trajectory import Step, Task, Trajectory, sample_rng

RESULT = RESULTS / "train.json"
WORDS = [f"word{number}" for number in range(154)]


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
    return Bench(policy, [s for s in flat.sequences if 40 <= len(s) <= 110], epochs, seed)


def ours(bench: Bench) -> float:
    learner = Learner(bench.policy.clone(), weighted_nll, bench.config, seed=bench.seed)
    began = time.process_time()
    learner.fit(bench.parts)
    return time.process_time() - began


def plain(bench: Bench) -> float:
    """The loop that one would write by hand, on ready batches."""
    model, batches = bench.policy.clone().model.train(), [labelled(batch) for batch in bench.batches()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=bench.lr, betas=(0.9, 0.98), weight_decay=0.1, fused=True)
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
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "optim": "adamw_torch_fused",
        "learning_rate": bench.lr,
        "adam_beta2": 0.98,
        "weight_decay": 0.1,
        "max_grad_norm": 1.0,
        "warmup_steps": 50,
        "lr_scheduler_type": "linear",
        "seed": bench.seed,
        "num_train_epochs": bench.epochs,
    }


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
                    per_device_train_batch_size=bench.rows,
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


def shapes(points: Sequence[Point], *, repeats: int, updates: int, seed: int) -> list[dict[str, Any]]:
    """One row a point: real tokens per CPU-second of every side, and the Learner's over each of the others."""
    rows = []
    for point in points:
        bench = point.bench(updates=updates, seed=seed)
        found = measure(bench, repeats, list(SIDES))
        median = {name: statistics.median(values) for name, values in found.items()}
        over = {name: round(median["ours"] / rate, 3) for name, rate in median.items() if name != "ours"}
        rows.append({"point": str(point), "parameters": bench.policy.parameters(), "median": median, "over": over})
        print(
            f"{point!s:42} {median['ours']:9.0f} tokens/cpu-s   over " + ", ".join(f"{n} {x}" for n, x in over.items())
        )
    return rows


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
        **about("torch", "transformers", "trl", "accelerate", threads=1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("train", __doc__, quick="a small workload: a smoke test, not a measurement", save=RESULT)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: 0.5B and 1.5B shapes in bfloat16"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and options.save == RESULT:  # no device overwrites what another was measured at
        options.save = RESULT.with_name("train_cuda.json")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if options.device == "cuda":
        result = on_a_gpu(seed=options.seed, quick=options.quick)
    else:
        torch.set_num_threads(1)
        bench = workload(episodes=60 if options.quick else 400, epochs=1 if options.quick else 2, seed=options.seed)
        result = report(bench, measure(bench, 1 if options.quick else 5, list(SIDES)))
        for name, rate in result["median"].items():
            print(
                f"{name:12} {rate:10.0f} tokens/cpu-s   ours over it {result['median']['ours'] / rate:.2f}", flush=True
            )
        few = {"repeats": 1 if options.quick else 3, "updates": 3 if options.quick else 8, "seed": options.seed}
        result["shapes"] = shapes(POINTS[:1] if options.quick else POINTS, **few)
        result |= ranks2(repeats=1 if options.quick else 4, updates=3 if options.quick else 6, seed=options.seed)
        print(f"two ranks over twice one: {result['ranks2']}")
    finish(result, options)


if __name__ == "__main__":
    main()
