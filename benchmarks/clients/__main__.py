"""Clients of other projects on the policy server: each runs its own script against a server that is started for it.

    evolvent models get smollm2                                    first, once
    python -m benchmarks.clients [--json]
    python -m benchmarks.clients --python instructor=PATH lm_eval=PATH     the Pythons that have them
    python -m benchmarks.clients --only langchain

The scripts are `with_NAME.py`: LangChain's structured output, instructor, pydantic-ai, inspect_ai, and
lm-evaluation-harness. A client is looked for in this Python unless --python names another one; one that is not
installed is `missing`. A check passes where the client gets what it asked for, in the form that it asked for; how well
a small model answers is not judged. The log-probabilities that lm-evaluation-harness reads for multiple choice are
compared with those of the same model by one forward of transformers; `largest_difference` is the largest one, in nats.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.first_hour.__main__ import serve_model
from benchmarks.reporting import about, command_line, finish, show
from evolvent.models.catalog import models_folder

ROOT = Path(__file__).parent
MODEL = "smollm2"
TIMEOUT_S = 1800
MODULES = {
    "langchain": "langchain_openai",
    "instructor": "instructor",
    "pydantic_ai": "pydantic_ai",
    "inspect_ai": "inspect_ai",
    "lm_eval": "lm_eval",
}
MAX_DIFFERENCE = 1e-4  # nats, between the log-probabilities of two ways to the same tokens
_COMPARED = "multiple choice"


def is_importable(python: str, module: str) -> bool:
    """Returns whether a Python has a module."""
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", find], capture_output=True).returncode == 0


def run_client(name: str, python: str, url: str) -> dict[str, Any]:
    """Runs the script of a client; returns its versions, and for every check why it failed ("": passed)."""
    if not is_importable(python, MODULES[name]):
        return {"missing": True, "versions": {}, "checks": {}}
    command = [python, str(ROOT / f"with_{name}.py"), url, MODEL, str(models_folder() / MODEL)]
    env = {
        **os.environ,
        "EVOLVENT_BASE_URL": url,
        "EVOLVENT_API_KEY": "unused",
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "unused",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    env.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    checks = {row["check"]: row for row in rows if "check" in row}
    if done.returncode:
        checks["the script"] = {"problem": done.stderr[-600:], "found": None}
    versions = next((row["versions"] for row in rows if "versions" in row), {})
    return {"missing": False, "versions": versions, "checks": checks}


def score_choices(rows: Sequence[Sequence[Any]]) -> float:
    """Returns the largest difference from the model's own log-probabilities.

    Args:
        rows: context, choice, log-probability, and whether the choice is the likeliest text.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = models_folder() / MODEL
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    differences = []
    for context, choice, found, is_greedy in rows:
        ids, start = tokenizer.encode(context + choice), len(tokenizer.encode(context))
        with torch.inference_mode():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        own = sum(float(logprobs[position - 1, ids[position]]) for position in range(start, len(ids)))
        likeliest = logprobs[start - 1 : len(ids) - 1].argmax(-1).tolist()
        differences.append(abs(own - found) if is_greedy == (likeliest == ids[start:]) else float("inf"))
    return max(differences)


def summarize(clients: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the keys of the benchmark: how many checks passed and failed, and which clients are missing."""
    problems = [row["problem"] for client in clients.values() for row in client["checks"].values()]
    return {
        "passed": sum(not problem for problem in problems),
        "failed": sum(bool(problem) for problem in problems),
        "missing": [name for name, client in clients.items() if client["missing"]],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("clients", __doc__, quick="nothing: all checks are short")
    parser.add_argument("--only", nargs="+", choices=MODULES, default=list(MODULES), help="some of the clients")
    parser.add_argument("--python", nargs="+", default=[], metavar="NAME=PATH", help="the Python of a client")
    options = parser.parse_args(arguments)
    pythons = dict(pair.split("=", 1) for pair in options.python)
    if unknown := [name for name in pythons if name not in MODULES]:
        parser.error(f"--python: unknown client {unknown[0]!r} (known: {', '.join(MODULES)})")
    clients: dict[str, dict[str, Any]] = {}
    difference = None
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, serve_model(Path(folder), env, ()) as url:
        for name in options.only:
            clients[name] = run_client(name, pythons.get(name, sys.executable), url)
            for check, row in clients[name]["checks"].items():
                print(f"{name:12} {check:50} {row['problem'] or 'passed'}", flush=True)
    compared = clients.get("lm_eval", {}).get("checks", {}).get(_COMPARED, {})
    if compared and not compared["problem"]:
        difference = score_choices(compared["found"])
        if difference > MAX_DIFFERENCE:
            compared["problem"] = f"log-probabilities differ by {difference:.2g}"
    rows = {
        name: {
            "missing": client["missing"],
            "versions": client["versions"],
            "checks": {check: row["problem"] for check, row in client["checks"].items()},
        }
        for name, client in clients.items()
    }
    figures = {"benchmark": "clients", **summarize(clients), "largest_difference": difference, "clients": rows}
    packages = about("torch", "transformers", threads=1)
    show(figures, without=("clients",))
    finish({**figures, **packages}, options)


if __name__ == "__main__":
    main()
