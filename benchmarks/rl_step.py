"""A whole step of reinforcement, playing and updating: CPU beside TRL's GRPOTrainer, and where the time goes.

    python -m benchmarks.rl_step [--json] [--quick] [--save] [--no-peers] [--device cuda]

Both sides train the same small Llama from the same weights with GRPO: the same prompts, the same reward, as many tasks,
samples and most tokens a step, one update on all of them, no divergence from a reference, AdamW, clipping at .5,
float32, one thread. TRL generates by itself, with the `generate` of transformers. Ours is the whole library's step:
engine, environments, the store that keeps every episode, measurements of health, credit, update.

Time is CPU time of a step for each written token (texts may end early), the first step left out; sides are
interleaved, each beginning anew, and ratios are of medians, so over 1 ours is faster. There are three shapes of work:
texts of one length, texts that end by themselves, and long prompts. `model_share` is the share of our
step in forwards of the model (playing, looking, learning) and in backward passes; `credit_share` that of making
advantages of rewards. Both come from clocks around those calls in the same runs. Peers need an environment with TRL:
`python -m venv`, then `pip install -c constraints.txt -e '.[bench]'`.

`--device cuda` measures something else: tokens a second, seconds of a step and shares of the device's limits, with a
0.5B shape in bfloat16 (`benchmarks/rl_step_gpu.py`).
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from importlib.util import find_spec
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from transformers import LlamaForCausalLM

from benchmarks.reporting import RESULTS, about, command_line, finish, show
from benchmarks.rl_step_gpu import long_prompts, on_a_device
from benchmarks.rl_step_work import CLIP, RATE, SHAPES, Shape, practising, reward
from benchmarks.study import exit_on_problems
from evolvent.engine.fused import FusedDecoder
from evolvent.errors import ConfigError, Problem
from evolvent.learn import forward
from evolvent.learn.learner import TrainConfig
from evolvent.models.policy import Policy

RESULT = RESULTS / "rl_step.json"


@dataclass
class Clocks:
    """CPU seconds by what they were spent on, while `running`."""

    spent: dict[str, float] = field(default_factory=lambda: {"model": 0.0, "credit": 0.0})
    _inside: bool = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Clocks around every forward of the model and every backward pass, on either side."""
        with ExitStack() as patched:
            for owner, name in (
                (LlamaForCausalLM, "forward"),
                (FusedDecoder, "forward"),
                (FusedDecoder, "logits"),
                (forward, "head_logprobs"),
                (torch.autograd, "backward"),
            ):
                patched.enter_context(patch.object(owner, name, self._clocked(getattr(owner, name))))
            yield

    def _clocked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return call(*arguments, **options)
            with self.on("model"):
                return call(*arguments, **options)

        return wraps(call)(timed)

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count what happens inside for `what`."""
        self._inside, began = True, time.process_time()
        try:
            yield
        finally:
            self.spent[what] += time.process_time() - began
            self._inside = False


@dataclass(frozen=True)
class Tick:
    """The end of a step: CPU time, tokens written and CPU time by kind, all since the beginning."""

    cpu: float
    written: int
    spent: Mapping[str, float]


def ours(shape: Shape, clocks: Clocks) -> list[Tick]:
    """`methods/grpo.py`, with a clock at the beginning of each step."""
    ticks, written = list[Tick](), 0
    train = TrainConfig(
        lr=RATE, weight_decay=0.0, final_lr_ratio=1.0, max_grad_norm=CLIP, batch_tokens=shape.forward_tokens
    )
    with practising(
        shape.policy(),
        shape.prompts(),
        steps=shape.steps + 1,
        samples=shape.samples,
        written=shape.written,
        train=train,
        seed=shape.seed,
    ) as (practice, tasks, chosen):
        for _ in practice.iterations():
            ticks.append(Tick(time.process_time(), written, dict(clocks.spent)))
            played = practice.rollout(practice.next_starts(tasks))
            written += sum(one.count_generated_tokens() for one in played)
            seen = practice.score(played)
            with clocks.on("credit"):
                credit = seen.estimate_advantages(chosen.estimator)
            practice.update(seen, credit)
    return ticks


def trl(shape: Shape, clocks: Clocks) -> list[Tick]:
    """TRL's GRPOTrainer with its own generation; a clock at the end of each step."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig as Config
    from trl import GRPOTrainer

    policy, ticks, counted = shape.policy(), list[Tick](), [0]
    policy.tokenizer.padding_side = "left"
    shown = {text: _spelled(policy, text) for text in shape.prompts()}

    def paid(completions: list[str], text: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        counted[0] += sum(map(len, completion_ids))
        return [reward(prompt, written) for prompt, written in zip(text, completions, strict=True)]

    def note(self: object, *arguments: Any, **options: Any) -> None:
        ticks.append(Tick(time.process_time(), counted[0], dict(clocks.spent)))

    with tempfile.TemporaryDirectory() as folder:
        arguments = Config(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            optim="adamw_torch_fused",
            learning_rate=RATE,
            weight_decay=0.0,
            max_grad_norm=CLIP,
            lr_scheduler_type="constant",
            seed=shape.seed,
            max_steps=shape.steps,
            per_device_train_batch_size=shape.rows_per_forward,
            gradient_accumulation_steps=shape.tasks * shape.samples // shape.rows_per_forward,
            num_generations=shape.samples,
            steps_per_generation=shape.tasks * shape.samples // shape.rows_per_forward,
            num_iterations=1,
            max_completion_length=shape.written,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            beta=0.0,
            loss_type="grpo",
        )
        rows = [{"prompt": prompt, "text": text} for text, prompt in shown.items()]
        trainer = GRPOTrainer(
            model=policy.model,
            reward_funcs=paid,
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=policy.tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(type("Clock", (TrainerCallback,), {"on_train_begin": note, "on_step_end": note})())
        trainer.train()
    return ticks


def _spelled(policy: Policy, text: str) -> str:
    """The prompt as text that the tokenizer reads as the very tokens that our dialect gives."""
    ids = policy.dialect.open("", text)
    spelled = " ".join(policy.tokenizer.convert_ids_to_tokens(ids))
    read = policy.tokenizer(spelled)["input_ids"]
    if read != ids:
        raise ConfigError("the two sides do not read the same prompt", value=read[:8], expected=ids[:8])
    return spelled


SIDES: dict[str, Callable[[Shape, Clocks], list[Tick]]] = {"ours": ours, "trl": trl}


def steps_of(side: str, shape: Shape) -> list[dict[str, float]]:
    """Every step but the first: CPU seconds for each written token, and the shares of model and credit."""
    clocks = Clocks()
    with clocks.running():
        ticks = SIDES[side](shape, clocks)
    found = []
    for before, after in list(pairwise(ticks))[1:]:
        cpu, written = after.cpu - before.cpu, after.written - before.written
        shares = {name: (after.spent[name] - before.spent[name]) / cpu for name in after.spent}
        found.append({"cpu_s": cpu, "written": written, "cpu_us_token": 1e6 * cpu / written, **shares})
    return found


def measure(shape: Shape, *, repeats: int, sides: Sequence[str]) -> dict[str, list[dict[str, float]]]:
    """The steps of every side, `repeats` runs each, interleaved."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name in sides:
            found[name] += steps_of(name, shape)
    return found


def figures(steps: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """One shape's medians, and TRL's time for a token over ours."""
    median = {
        side: {name: float(f"{statistics.median(row[name] for row in rows):.4g}") for name in rows[0]}
        for side, rows in steps.items()
    }
    own = median["ours"]
    over = {f"x_{side}": round(row["cpu_us_token"] / own["cpu_us_token"], 2) for side, row in median.items()}
    over.pop("x_ours")
    raw = {side: [round(row["cpu_us_token"], 2) for row in rows] for side, rows in steps.items()}
    return {**over, "model_share": own["model"], "credit_share": own["credit"], "median": median, "raw": raw}


def report(found: Mapping[str, Mapping[str, Any]], shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """All figures as one JSON object; the first ones are medians over the shapes."""
    names = ["model_share", "credit_share", *(["x_trl"] if all("x_trl" in row for row in found.values()) else [])]
    packages = ("torch", "transformers", *(["trl", "accelerate"] if "x_trl" in names else []))
    return {
        "benchmark": "rl_step",
        "unit": "CPU time for a written token of a step, one thread",
        **{name: round(statistics.median(row[name] for row in found.values()), 4) for name in names},
        "shapes": {name: {**asdict(shapes[name]), **row} for name, row in found.items()},
        "parameters": next(iter(shapes.values())).policy().parameters(),
        **about(*packages, threads=1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    few = "few small steps: a smoke test, not a measurement"
    parser = command_line("rl_step", __doc__, quick=few, save=RESULT)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: a 0.5B shape in bfloat16")
    parser.add_argument("--no-peers", action="store_true", help="only our side, where TRL is not installed")
    parser.add_argument("--size", default="xs", help="of the model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if options.device == "cuda":
        if options.save == RESULT:  # no device overwrites what another was measured at
            options.save = RESULT.with_name("rl_step_cuda.json")
        found = on_a_device(seed=options.seed, quick=options.quick)
        found["long prompts"] = long_prompts(seed=options.seed, quick=options.quick)
        show(found, without=("raw",))
        finish(found, options)
        return
    if not options.no_peers and find_spec("trl") is None:
        told = Problem("trl", "is not installed", "pip install -c constraints.txt -e '.[bench]', or give --no-peers")
        exit_on_problems([told])
    torch.set_num_threads(1)
    small = {"tasks": 4, "samples": 4, "steps": 3} if options.quick else {}
    shapes = {name: replace(shape, size=options.size, seed=options.seed, **small) for name, shape in SHAPES.items()}
    sides, found = ["ours"] if options.no_peers else [*SIDES], dict[str, dict[str, Any]]()
    for name, shape in shapes.items():
        found[name] = figures(measure(shape, repeats=1 if options.quick else 3, sides=sides))
        for side, row in found[name]["median"].items():
            print(
                f"{name:12} {side:5} {row['cpu_s']:.3f} cpu-s a step, {row['written']:.0f} tokens written, "
                f"{row['cpu_us_token']:.0f} us a token, model {row['model']:.0%}",
                flush=True,
            )
        print(f"{'':12} TRL over ours {found[name].get('x_trl', '-')}, credit {found[name]['credit_share']:.2%}")
    finish({**report(found, shapes), "seed": options.seed, "quick": options.quick}, options)


if __name__ == "__main__":
    main()
