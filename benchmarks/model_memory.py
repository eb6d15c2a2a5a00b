"""Memory of a pretrained model in the engine, and of the commands that run it.

SmolLM2-135M holds 64 conversations of 500 tokens, in float32 and in bfloat16, with the slots and the context of a
default command (384, 8,192). What is needed are the weights and the keys, values and hidden states of the tokens held;
RSS is the resident memory of the whole process, the interpreter and its libraries included. transformers holds the same
conversations in its own caches, eight at a time. Then the commands run with their default settings, over few tasks:
none may fail.

    evolvent models get smollm2
    python -m benchmarks.model_memory --json
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish, show

MODEL, CONVERSATIONS, TOKENS, SLOTS, CONTEXT = "smollm2", 64, 500, 384, 8192
GOALS = {"rss_over_needed": 1.3, "default_commands_failed": 0}
FEW = "--worlds lookup --panel.limit 2"
COMMANDS = {
    "eval": f"eval {MODEL} {FEW}",
    "collect": f"collect --agent policy --policy {MODEL} --worlds lookup --limit 2",
    "search": f"search --policy {MODEL} --worlds lookup --tiers seen --limit 1 --methods greedy --search.value none "
    "--budgets 512",
    "train rl": f"train rl --method grpo --policy {MODEL} {FEW} --tasks 2 --demonstrations 2 --clone_tokens 60 "
    "--rl.practice.iterations 1 --rl.practice.tasks_per_iteration 2 --rl.practice.group_size 2",
    "evolve": f"evolve --policy {MODEL} {FEW} --demonstrations 2 --explore 2 --method.iterations 1 "
    "--method.clone_tokens 60 --method.round_tokens 60",
}


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def draw_conversations(vocabulary: int, count: int) -> list[list[int]]:
    """Draws texts of random tokens: nothing is shared between them."""
    import numpy as np

    rng = np.random.default_rng(0)
    return [rng.integers(3, vocabulary, TOKENS).tolist() for _ in range(count)]


def measure_engine(dtype: str, count: int) -> dict[str, float]:
    """Holds the conversations in the engine; returns RSS and what is needed, in MB."""
    import torch

    from evolvent.engine.asks import ScoreAsk
    from evolvent.engine.driver import ask_and_wait
    from evolvent.engine.local import LocalEngine
    from evolvent.models.policy import load_policy

    torch.set_num_threads(1)
    libraries = resident_bytes()
    policy = load_policy(MODEL, dtype=dtype, context=CONTEXT)
    weights = sum(weight.numel() * weight.element_size() for weight in policy.model.parameters())
    engine = LocalEngine(policy, slots=SLOTS)
    answers = [
        ask_and_wait([ScoreAsk(None, text)], engine) for text in draw_conversations(len(policy.tokenizer), count)
    ]  # the nodes keep every conversation
    config = policy.model.config
    keys_values = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim
    held = len(answers) * TOKENS * (keys_values + config.hidden_size) * policy.model.dtype.itemsize
    return {"rss": resident_bytes() / 1e6, "needed": (weights + held) / 1e6, "libraries": libraries / 1e6}


def measure_transformers(dtype: str, count: int) -> dict[str, float]:
    """Holds the conversations in the caches of transformers."""
    import torch

    from evolvent.models.policy import load_policy

    torch.set_num_threads(1)
    policy = load_policy(MODEL, dtype=dtype, context=CONTEXT)
    texts, caches = draw_conversations(len(policy.tokenizer), count), []
    with torch.inference_mode():
        for first in range(0, count, 8):
            ids = torch.tensor(texts[first : first + 8])
            caches.append(policy.model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values)
    return {"rss": resident_bytes() / 1e6}


def run_apart(side: str, dtype: str, count: int) -> dict[str, float]:
    """Measures one side in a process of its own."""
    argv = [sys.executable, "-m", "benchmarks.model_memory", "--side", side, "--dtype", dtype, "--count", str(count)]
    finished = subprocess.run(argv, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return result


def run_command(line: str, folder: Path) -> tuple[bool, float, str]:
    """Runs a command; returns whether it went well, its peak RSS in MB, and its last line."""
    argv = [sys.executable, "-m", "evolvent", *line.split(), "--output_dir", str(folder / "run")]
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    lines = (folder / "log").read_text(encoding="utf-8").splitlines()
    return process.returncode == 0, usage.ru_maxrss * 1024 / 1e6, lines[-1] if lines else ""


def run_server(folder: Path) -> tuple[bool, float, str]:
    """Serves the model with its defaults and asks it once."""
    argv = [sys.executable, "-m", "evolvent", "serve", "--policy", MODEL, "--port", "0"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
    answer, address = "", None
    try:
        assert process.stdout is not None
        for line in process.stdout:
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            if address is not None:
                break
        if address is not None:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
            headers = {"Content-Type": "application/json"}
            url = f"{address.group()}/v1/chat/completions"
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=120) as reply:
                answer = json.loads(reply.read())["choices"][0]["message"]["content"]
    except OSError as error:
        answer, address = str(error), None
    finally:
        process.terminate()
        _, _, usage = os.wait4(process.pid, 0)
    return address is not None, usage.ru_maxrss * 1024 / 1e6, answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures everything; prints a table, or one JSON object."""
    parser = command_line(
        "model_memory", __doc__, quick="4 conversations, one command", save=RESULTS / "model_memory.json"
    )
    parser.add_argument("--side", help="measure one side in this process: engine or transformers")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--count", type=int, default=CONVERSATIONS)
    options = parser.parse_args(arguments)
    if options.side:
        measure = measure_engine if options.side == "engine" else measure_transformers
        sys.stdout.write(json.dumps(measure(options.dtype, options.count)) + "\n")
        return 0
    count = 4 if options.quick else CONVERSATIONS
    figures: dict[str, Any] = {"benchmark": "model_memory", "model": MODEL, "conversations": count, "tokens": TOKENS}
    ratios = []
    for dtype in ("float32", "bfloat16"):
        engine, peer = run_apart("engine", dtype, count), run_apart("transformers", dtype, count)
        ratios.append(engine["rss"] / engine["needed"])
        figures |= {
            f"rss_mb_{dtype}": round(engine["rss"]),
            f"needed_mb_{dtype}": round(engine["needed"]),
            f"rss_over_needed_{dtype}": round(ratios[-1], 3),
            f"transformers_rss_mb_{dtype}": round(peer["rss"]),
        }
        figures["libraries_mb"] = round(engine["libraries"])
    figures["rss_over_needed"] = round(max(ratios), 3)
    failed = 0
    for name in [*list(COMMANDS)[: 1 if options.quick else None], *([] if options.quick else ["serve"])]:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            succeeded, peak, last_line = (
                run_server(Path(folder)) if name == "serve" else run_command(COMMANDS[name], Path(folder))
            )
        failed += not succeeded
        key = name.replace(" ", "_")
        figures |= {f"{key}_peak_mb": round(peak), f"{key}_s": round(time.monotonic() - began, 1)}
        if not succeeded:
            figures[f"{key}_error"] = last_line
    figures |= {"default_commands_failed": failed, "goals": GOALS, **about("torch", "transformers", threads=1)}
    show(figures, without=("goals", "versions", "machine"))
    finish(figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
