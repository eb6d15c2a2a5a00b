"""inspect_ai: evaluations by the `openai-api` and `openai` providers: choices, tools, schemas, log-probabilities."""

import tempfile
from typing import Literal

from checks import read_endpoint, run_checks
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema
from inspect_ai.scorer import choice, includes
from inspect_ai.solver import generate, multiple_choice, system_message, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

ENDPOINT = read_endpoint()
SAMPLES = [Sample("Say hello.", target="hello"), Sample("Say bye.", target="bye")]


class Color(BaseModel):
    name: Literal["red", "blue"]
    share: Literal[1, 2]


@tool
def add():
    async def execute(a: int, b: int) -> str:
        """Adds two numbers.

        Args:
            a: the first.
            b: the second.
        """
        return str(a + b)

    return execute


def run(task, provider="openai-api/evolvent", **settings):
    limits = {"max_retries": 0, "temperature": 0, "display": "none", "log_dir": tempfile.mkdtemp(), **settings}
    (log,) = evaluate(task, model=f"{provider}/{ENDPOINT.model}", **limits)
    problem = log.error.message if log.error else ""
    assert log.status == "success", problem[-600:]
    return [sample.output.completion for sample in log.samples or []]


def plain(**settings):
    task = Task(SAMPLES, solver=[system_message("Be kind."), generate()], scorer=includes())
    return run(task, **{"max_tokens": 8, "seed": 1, **settings})


def choices():
    sample = Sample("Which is a color?", choices=["red", "dog"], target="A")
    return run(Task([sample], solver=[multiple_choice()], scorer=choice()), max_tokens=8)


def with_tool(**settings):
    solver = [use_tools(add(), **settings), generate(tool_calls="single")]
    return run(Task(SAMPLES[:1], solver=solver, scorer=includes()), max_tokens=48, parallel_tool_calls=False)


def schema():
    config = GenerateConfig(response_schema=ResponseSchema(name="color", json_schema=json_schema(Color)))
    (text,) = run(Task(SAMPLES[:1], solver=[generate()], scorer=includes(), config=config), max_tokens=48)
    return Color.model_validate_json(text).model_dump()


def alternatives():
    settings = {"logprobs": True, "top_logprobs": 2, "num_choices": 2, "stop_seqs": ["."], "logit_bias": {4: 1}}
    task = Task(SAMPLES[:1], solver=[generate()], scorer=includes())
    return run(task, max_tokens=3, frequency_penalty=0.1, presence_penalty=0.1, top_p=0.9, **settings)


CHECKS = {
    "an evaluation": plain,
    "an evaluation by the openai provider": lambda: plain(provider="openai"),
    "multiple choice": choices,
    "a required tool": lambda: with_tool(tool_choice="any"),
    "one free call at most": with_tool,
    "a response schema": schema,
    "log-probabilities, choices, stops, biases": alternatives,
}

if __name__ == "__main__":
    run_checks(CHECKS, ("inspect-ai", "openai"))
