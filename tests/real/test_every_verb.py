"""Every verb on SmolLM2, a few tokens or updates each: commands as users write them, in processes of their own."""

from __future__ import annotations

import json
import math
from pathlib import Path

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import evolvent as ev
from evolvent.cli.main import main
from evolvent.engine.driver import ask_and_wait
from evolvent.models.catalog import count_parameters
from evolvent.models.policy import load_policy
from evolvent.store.store import Store
from tests.cli.test_cli_train_data import CODE, TALKS, calls
from tests.serve.command import command as serve_command

pytestmark = pytest.mark.long

LORA = ("--adapter.kind", "lora", "--adapter.rank", "4", "--adapter.alpha", "8")
SHORT = ("--policy", "smollm2", "--context", "512")
ONE_WORLD = ("--worlds", "lookup")
FEW_UPDATES = ("--train.max_steps", "2", "--train.batch_tokens", "512", "--train.warmup_steps", "0")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Returns a folder with episodes of the expert in `expert`, and of the model's own in `played`."""
    folder = tmp_path_factory.mktemp("real")
    assert (
        main(["collect", "--agent", "expert", *ONE_WORLD, "--limit", "6", "--output_dir", str(folder / "expert")]) == 0
    )
    return folder


@pytest.fixture
def evolvent(smollm2, place, command):
    """Runs a command in the folder; it must succeed."""

    def run(*words: object) -> str:
        done = command(*words, cwd=place)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def fit_losses(run: Path) -> list[float]:
    return [row["loss"] for row in rows_of(run / "metrics.jsonl") if "loss" in row]


def test_collect_and_eval(evolvent, place):
    evolvent("collect", "--agent", "policy", *SHORT, *ONE_WORLD, "--limit", 2, "--samples", 2, "--max_tokens", 10,
             "--output_dir", "played")  # fmt: skip
    with Store.open(place / "played" / "trajectories") as store:
        episodes = list(store.trajectories())
    generations = [each for episode in episodes for step in episode.steps for each in step.generations]
    assert len(episodes) == 4 * len({episode.task.tier for episode in episodes})
    assert generations and all(len(each.tokens) <= 10 == len(each.logprobs) or each.logprobs for each in generations)
    shown = evolvent("eval", *SHORT, *ONE_WORLD, "--panel.limit", 2, "--max_tokens", 10, "--output_dir", "measured")
    assert "were not actions, most often" in shown
    assert all(row["replies"] > 0 for row in rows_of(place / "measured" / "results.jsonl"))


@pytest.mark.parametrize("value", ["head", "itself"])
def test_search(evolvent, place, value):
    common = (*SHORT, "--worlds", "countdown", "--limit", 2, "--search.method", "mcts", "--search.max_tokens", 24,
              "--search.simulations", 4, "--search.width", 2, "--budgets", 200)  # fmt: skip
    if value == "head":
        evolvent(
            "train", "value", "expert", "--policy", "smollm2", "--context", 512, *FEW_UPDATES, "--output_dir", "judge"
        )
        evolvent("search", *common, "--judge", "judge", "--output_dir", "searched-head")
    else:
        evolvent("search", *common, "--search.score", "generative", "--output_dir", "searched-itself")
    searched = [row for row in rows_of(place / f"searched-{value}" / "searches.jsonl") if row["method"] == "mcts"]
    assert searched and all(0 < row["spent"]["generated"] <= 200 for row in searched)


@pytest.mark.parametrize("recipe", ["sft", "reward", "dpo"])
def test_supervised(evolvent, place, recipe):
    data = "expert"
    if recipe != "sft":
        data = "pairs.jsonl"
        pairs = [
            {"prompt": f"say {a}", "chosen": f"{a} it is", "rejected": "I will not"} for a in ("rain", "mail", "song")
        ]
        (place / data).write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    evolvent("train", recipe, data, *SHORT, *LORA, *FEW_UPDATES, "--output_dir", recipe)
    losses = fit_losses(place / recipe)
    assert len(losses) == 2 and all(map(math.isfinite, losses))


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_reinforcement(evolvent, place, method):
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(2, 5) for b in range(2, 5)]
    (place / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (place / "short.py").write_text("def short(completion):\n    return 1 / (1 + len(completion))\n", encoding="utf-8")
    evolvent("train", method, *SHORT, *LORA, "--data", "sums.jsonl", "--reward", "short.py:short", "--max_tokens", 12,
             "--rl.practice.iterations", 2, "--rl.practice.tasks_per_iteration", 2, "--panel.limit", 2,
             "--output_dir", method)  # fmt: skip
    updates = [row for row in rows_of(place / method / "metrics.jsonl") if row["kind"] == "practice"]
    assert len(updates) == 2 and all(math.isfinite(row["loss"]) for row in updates)
    assert (place / method / "model" / "adapter_model.safetensors").is_file()


def test_a_memory_of_expert_steps(evolvent, place):
    evolvent("memory", "build", "expert", "--to", "memory", "--key", "observation", "--key", "metadata")
    found = evolvent("memory", "query", "memory", "find the home of the mayor", "--k", 2, "--json").splitlines()
    assert len(found) == 2 and all("observation" in json.loads(line) for line in found)
    evolvent("collect", "--agent", "policy", *SHORT, *ONE_WORLD, "--limit", 1, "--max_tokens", 10, "--memory.folder",
             "memory", "--output_dir", "recalled")  # fmt: skip
    with Store.open(place / "recalled" / "trajectories") as store:
        assert all(step.info["shown"] for episode in store.trajectories() for step in episode.steps)


@pytest.mark.parametrize("recipe", ["hammer", "comments", "p3"])
def test_data_methods(evolvent, place, recipe):
    rows = {"hammer": [*calls("oslo"), *calls("rome")], "comments": CODE, "p3": TALKS}[recipe]
    (place / f"{recipe}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = {
        "hammer": ("--hammer.copies", 2, "--hammer.tokens", 60, "--max_tokens", 16),
        "comments": ("--comments.pair_tokens", 60, "--comments.tokens", 60, "--max_tokens", 24),
        "p3": ("--p3.rounds", 2, "--p3.count", 3, "--p3.within", 0.5, "--p3.tokens", 30),
    }[recipe]
    evolvent(
        "train", recipe, f"{recipe}.jsonl", *SHORT, *LORA, "--train.batch_tokens", 512, *own, "--output_dir", recipe
    )
    losses = fit_losses(place / recipe)
    assert losses and all(map(math.isfinite, losses))


def test_publish(evolvent, place):
    evolvent("train", "sft", "expert", *SHORT, *LORA, *FEW_UPDATES, "--output_dir", "to-publish")
    evolvent("publish", "to-publish", "--to", "published", "--license", "Apache-2.0")
    assert 'base_model: "HuggingFaceTB/SmolLM2-135M-Instruct"' in (place / "published" / "README.md").read_text(
        encoding="utf-8"
    )


def test_export_to_int8(evolvent, place):
    pytest.importorskip("torchao")
    evolvent("export", "smollm2", "--to", "exported", "--tokens", 4, "--prompt", 8, "--licence", "Apache-2.0")
    sizes = {name: (place / "exported" / name / "model.safetensors").stat().st_size for name in ("float", "int8")}
    assert sizes["int8"] < 0.45 * sizes["float"]


def test_chat_of_a_trained_run(evolvent, place):
    evolvent("train", "sft", "expert", *SHORT, *LORA, *FEW_UPDATES, "--output_dir", "to-chat")
    reply = evolvent(
        "chat", "to-chat", "--once", "What is the capital of France?", "--temperature", 0, "--max-tokens", 12
    )
    assert "Paris" in reply


def test_gguf_in_and_out(smollm2, tmp_path):
    """The converted folder is an ordinary one: transformers writes the same greedy tokens from it."""
    policy = load_policy("smollm2", context=256)
    policy.save(tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name three rivers."}], tokenize=False, add_generation_prompt=True
    )
    prompt = tokenizer(text, add_special_tokens=False).input_ids
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
    engine = ev.LocalEngine(policy, slots=1)
    stops = frozenset(policy.dialect.stop_ids)
    ((ours,),) = ask_and_wait([ev.SampleAsk(None, prompt, 24, stops, sampling=ev.Sampling(temperature=0.0))], engine)
    assert ours.ids.tolist() == theirs
    assert count_parameters(tmp_path / "saved") == count_parameters(smollm2)


def test_serve(smollm2):
    """Chat completions as clients of OpenAI ask for them: several choices, log-probabilities, stops, streams, tools."""
    with serve_command("--policy", "smollm2", "--context", "512", "--slots", "4") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
        (model,) = client.models.list().data
        ask = {"model": model.id, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        greedy = client.chat.completions.create(**ask, temperature=0, max_tokens=12, logprobs=True)
        text = greedy.choices[0].message.content
        assert "Paris" in text
        tokens = greedy.choices[0].logprobs.content
        assert "".join(token.token for token in tokens).startswith(text) and all(token.logprob <= 0 for token in tokens)
        several = client.chat.completions.create(**ask, n=3, temperature=1.0, max_tokens=6, seed=1)
        assert len(several.choices) == 3
        stopped = client.chat.completions.create(**ask, temperature=0, max_tokens=12, stop=["France"])
        assert stopped.choices[0].finish_reason == "stop" and "France" not in stopped.choices[0].message.content
        chunks = list(client.chat.completions.create(**ask, temperature=0, max_tokens=12, stream=True))
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert streamed == text
        tool = {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "the weather of a city",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
        called = client.chat.completions.create(
            model=model.id,
            messages=[{"role": "user", "content": "Weather in Oslo?"}],
            tools=[tool],
            tool_choice="required",
            temperature=0,
            max_tokens=60,
        )
        (call,) = called.choices[0].message.tool_calls
        assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"]
