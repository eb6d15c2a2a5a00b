"""langchain-openai: structured output in every method, tools, streams, several system messages, the responses API."""

from typing import Literal

from checks import MAX_TOKENS, QUESTION, read_endpoint, run_checks
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langchain_openai import OpenAI as TextOpenAI
from pydantic import BaseModel, Field

ENDPOINT = read_endpoint()


class Color(BaseModel):
    """A color."""

    name: Literal["red", "green", "blue"] = Field(description="which color")
    share: int = Field(ge=0, le=9, description="how much of it")
    note: Literal["dark", "light"] | None = None


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def chat(**settings):
    base = {"temperature": 0, "max_tokens": MAX_TOKENS, "max_retries": 0, "timeout": 300, "api_key": "unused"}
    return ChatOpenAI(model=ENDPOINT.model, base_url=ENDPOINT.url, **{**base, **settings})


def structured(method, **settings):
    reply = chat().with_structured_output(Color, method=method, **settings).invoke(QUESTION)
    assert isinstance(reply, Color), reply
    return reply.model_dump()


def json_mode():
    """The format is an object of any form: it is read as JSON, whether or not it is a color."""
    reply = chat().with_structured_output(Color, method="json_mode", include_raw=True).invoke(QUESTION)
    assert reply["raw"].content.startswith("{"), reply
    return reply["raw"].content


def streamed_structure():
    parts = list(chat().with_structured_output(Color, method="json_schema").stream(QUESTION))
    assert isinstance(parts[-1], Color), parts
    return parts[-1].model_dump()


def streamed_usage():
    chunks = list(chat(stream_usage=True, max_tokens=6).stream("Say hello."))
    (usage,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage["output_tokens"] and "".join(chunk.content for chunk in chunks)
    return dict(usage)


def tool_conversation(**settings):
    model = chat(max_tokens=40, **settings)
    messages = [SystemMessage("Be kind."), HumanMessage("What is 2 + 3?")]
    reply = model.bind_tools([add], tool_choice="add").invoke(messages)
    (call,) = reply.tool_calls
    messages += [reply, ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])]
    model.bind_tools([add]).invoke(messages)
    return call["args"]


def one_free_call():
    chat(max_tokens=8).bind_tools([add], parallel_tool_calls=False).invoke("What is 2 + 3?")


def system_messages():
    messages = [SystemMessage("Be kind."), SystemMessage("Be short."), HumanMessage("Hi"), AIMessage("Yes?")]
    return chat(max_tokens=4).invoke([*messages, SystemMessage("In English."), HumanMessage("Hi")]).content


def logprobs():
    reply = chat(max_tokens=2).bind(logprobs=True, top_logprobs=3).invoke("Hi")
    rows = reply.response_metadata["logprobs"]["content"]
    assert all(len(row["top_logprobs"]) == 3 for row in rows)


def settings():
    fields = {"seed": 3, "stop": ["."], "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": 0.1}
    harmless = {"store": False, "service_tier": "auto", "metadata": {"a": "b"}, "logit_bias": {"5": 1}}
    return chat(**fields, **harmless, max_tokens=5).invoke("Hi").content


def several_texts():
    model = TextOpenAI(model=ENDPOINT.model, base_url=ENDPOINT.url, api_key="unused", max_tokens=4, n=2, best_of=2)
    generations = model.generate(["hi", "you"]).generations
    assert [len(group) for group in generations] == [2, 2]


def responses_structure():
    reply = chat(use_responses_api=True).with_structured_output(Color).invoke(QUESTION)
    assert isinstance(reply, Color), reply
    return reply.model_dump()


CHECKS = {
    "structured output, json_schema": lambda: structured("json_schema"),
    "structured output, json_schema, strict": lambda: structured("json_schema", strict=True),
    "structured output, function_calling": lambda: structured("function_calling"),
    "structured output, json_mode": json_mode,
    "structured output, streamed": streamed_structure,
    "usage of a stream": streamed_usage,
    "a conversation with a tool": tool_conversation,
    "one free call at most": one_free_call,
    "several system messages": system_messages,
    "log-probabilities": logprobs,
    "settings": settings,
    "completions of several texts": several_texts,
    "responses, structured output": responses_structure,
    "responses, a conversation with a tool": lambda: tool_conversation(use_responses_api=True),
}

if __name__ == "__main__":
    run_checks(CHECKS, ("langchain-openai", "langchain-core", "openai"))
