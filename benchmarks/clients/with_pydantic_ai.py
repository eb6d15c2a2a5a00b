"""pydantic-ai: the kinds of output, tools, streams, instructions beside system prompts, and a retry of the output."""

import asyncio
from typing import Literal

from checks import MAX_TOKENS, QUESTION, read_endpoint, run_checks
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry, ModelSettings, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

ENDPOINT = read_endpoint()
SHORT = ModelSettings(max_tokens=5, temperature=0)


class Color(BaseModel):
    """A color."""

    name: Literal["red", "green", "blue"] = Field(description="which color")
    share: int = Field(ge=0, le=9, description="how much of it")
    note: Literal["dark", "light"] | None = None


def agent(kind=OpenAIChatModel, **settings):
    provider = OpenAIProvider(base_url=ENDPOINT.url, api_key="unused")
    limits = ModelSettings(max_tokens=MAX_TOKENS, temperature=0)
    return Agent(kind(ENDPOINT.model, provider=provider), **{"model_settings": limits, "retries": 0, **settings})


def ask(output_type, *, kind=OpenAIChatModel):
    output = agent(kind, output_type=output_type).run_sync(QUESTION).output
    assert isinstance(output, Color), output
    return output.model_dump()


def tools_and_output():
    made = agent(output_type=Color)

    @made.tool_plain
    def add(a: Literal[1, 2], b: Literal[1, 2]) -> int:
        """Adds two numbers."""
        return a + b

    output = made.run_sync(QUESTION).output
    assert isinstance(output, Color), output


def system_and_instructions():
    made = agent(system_prompt=("Be kind.", "Be short."), instructions="In English.", model_settings=SHORT)
    first = made.run_sync("Say hello.")
    return made.run_sync("And bye.", message_history=first.all_messages()).output


def history_of_calls():
    first = agent(output_type=Color).run_sync(QUESTION)
    return agent(model_settings=SHORT).run_sync("And another.", message_history=first.all_messages()).output


def retry():
    made, outputs = agent(output_type=NativeOutput(Color), retries=2), []

    @made.output_validator
    def check(output):
        outputs.append(output)
        if len(outputs) == 1:
            raise ModelRetry("another color")
        return output

    made.run_sync(QUESTION)
    assert len(outputs) == 2


def stream(output_type):
    async def collect():
        async with agent(output_type=output_type).run_stream(QUESTION) as run:
            return [part async for part in run.stream_output()][-1], run.usage

    last, usage = asyncio.run(collect())
    assert isinstance(last, Color), last
    assert (usage() if callable(usage) else usage).output_tokens > 0


def settings():
    fields = {"seed": 1, "top_p": 0.9, "stop_sequences": ["."], "presence_penalty": 0.1, "logit_bias": {"4": 1}}
    own = {"openai_logprobs": True, "openai_top_logprobs": 2, "openai_user": "me", "openai_store": False}
    made = agent(model_settings=ModelSettings(max_tokens=5, parallel_tool_calls=False, **fields, **own))
    return made.run_sync("Say hello.").output


CHECKS = {
    "output by a tool": lambda: ask(Color),
    "native output": lambda: ask(NativeOutput(Color)),
    "tools beside the output": tools_and_output,
    "system prompts and instructions": system_and_instructions,
    "a history with calls": history_of_calls,
    "a retry of the output": retry,
    "a stream, native output": lambda: stream(NativeOutput(Color)),
    "a stream, output by a tool": lambda: stream(Color),
    "settings": settings,
    "responses, native output": lambda: ask(NativeOutput(Color), kind=OpenAIResponsesModel),
    "responses, output by a tool": lambda: ask(Color, kind=OpenAIResponsesModel),
}

if __name__ == "__main__":
    run_checks(CHECKS, ("pydantic-ai-slim", "openai"))
