"""lm-evaluation-harness: `local-completions` and `local-chat-completions` on tasks that it writes itself.

The log-probabilities of multiple choice are printed, for the benchmark to compare them with those of the model.
"""

import json
import tempfile
from pathlib import Path

import lm_eval
from checks import read_endpoint, run_checks
from lm_eval.tasks import TaskManager

ENDPOINT = read_endpoint()
FOLDER = Path(tempfile.mkdtemp())
ROWS = [
    {"question": "The sky is", "choices": ["blue", "angry", "a stone"], "answer": 0},
    {"question": "Grass is", "choices": ["loud", "green"], "answer": 1},
    {"question": "Two plus two is", "choices": ["four", "seven", "ten"], "answer": 0},
]
TASKS = {
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_target": "answer",
        "doc_to_choice": "{{choices}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 8, "temperature": 0},
        "metric_list": [{"metric": "exact_match"}],
    },
    "read": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}


def write_tasks():
    rows = FOLDER / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}, "test_split": "test"}
    for name, task in TASKS.items():
        row = {"task": name, "doc_to_text": "{{question}}", **source, **task}
        (FOLDER / f"{name}.yaml").write_text(json.dumps(row), encoding="utf-8")  # JSON is YAML
    return TaskManager(include_path=str(FOLDER), include_defaults=False)


def evaluate(task, *, model="local-completions", batch_size=1, **settings):
    path = "chat/completions" if "chat" in model else "completions"
    fields = {"model": ENDPOINT.model, "base_url": f"{ENDPOINT.url}/{path}", "max_retries": 1, "num_concurrent": 1}
    if "chat" not in model:
        fields |= {"tokenizer": ENDPOINT.tokenizer, "tokenizer_backend": "huggingface"}
    arguments = ",".join(f"{name}={value}" for name, value in fields.items())
    results = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[task],
        task_manager=MANAGER,
        batch_size=batch_size,
        log_samples=True,
        bootstrap_iters=0,
        **settings,
    )
    return results["samples"][task]


def choose(batch_size):
    samples = evaluate("choose", batch_size=batch_size)
    return [
        [*argument, float(reply[0][0]), str(reply[0][1]) == "True"]
        for sample in samples
        for argument, reply in zip(sample["arguments"], sample["resps"], strict=True)
    ]


def write(**settings):
    texts = [sample["resps"][0][0] for sample in evaluate("write", **settings)]
    assert all(text and "\n" not in text for text in texts), texts
    return texts


CHAT = {"model": "local-chat-completions", "apply_chat_template": True}
CHECKS = {
    "multiple choice": lambda: choose(1),
    "multiple choice, four prompts in a request": lambda: choose(4),
    "rolling log-likelihood": lambda: [
        [sample["arguments"][0][0], float(sample["resps"][0][0])] for sample in evaluate("read")
    ],
    "generate until": lambda: write(batch_size=2),
    "generate until, chat": lambda: write(**CHAT),
    "generate until, chat with a system message and an example": lambda: write(
        **CHAT, system_instruction="Be short.", num_fewshot=1
    ),
}

if __name__ == "__main__":
    MANAGER = write_tasks()
    run_checks(CHECKS, ("lm-eval", "transformers"))
