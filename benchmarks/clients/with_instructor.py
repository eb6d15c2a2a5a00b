"""instructor: its modes over one endpoint, parts of a stream, and the conversation of a retry."""

from typing import Literal

import instructor
import openai
from checks import MAX_TOKENS, QUESTION, read_endpoint, run_checks
from pydantic import BaseModel, ConfigDict, Field, field_validator

ENDPOINT = read_endpoint()
MODES = instructor.Mode


class Color(BaseModel):
    """A color."""

    name: Literal["red", "green", "blue"] = Field(description="which color")
    share: int = Field(ge=0, le=9, description="how much of it")
    note: Literal["dark", "light"] | None = None


class Free(BaseModel):
    """Any object."""

    model_config = ConfigDict(extra="allow")


ATTEMPTS = []


class Second(BaseModel):
    """A number that is refused the first time."""

    number: int = Field(ge=0, le=9)

    @field_validator("number")
    @classmethod
    def check(cls, number):
        ATTEMPTS.append(number)
        if len(ATTEMPTS) == 1:
            raise ValueError("another number")
        return number


def client(mode):
    return instructor.from_openai(openai.OpenAI(base_url=ENDPOINT.url, api_key="unused", max_retries=0), mode=mode)


def ask(mode, response_model=Color, *, question=QUESTION, retries=0, limit="max_tokens"):
    reply = client(mode).chat.completions.create(
        model=ENDPOINT.model,
        messages=[{"role": "system", "content": "Be short."}, {"role": "user", "content": question}],
        response_model=response_model,
        max_retries=retries,
        temperature=0,
        **{limit: MAX_TOKENS},
    )
    assert isinstance(reply, response_model), reply
    return reply.model_dump()


def stream_parts(mode):
    parts = client(mode).chat.completions.create_partial(
        model=ENDPOINT.model,
        messages=[{"role": "user", "content": QUESTION}],
        response_model=Color,
        temperature=0,
        max_tokens=MAX_TOKENS,
    )
    last = list(parts)[-1]
    assert last.name and last.share is not None, last
    return last.model_dump()


def retry(mode):
    ATTEMPTS.clear()
    reply = ask(mode, Second, question="Name a number.", retries=2)
    assert len(ATTEMPTS) > 1, ATTEMPTS
    return reply


CHECKS = {
    "TOOLS": lambda: ask(MODES.TOOLS),
    "TOOLS_STRICT": lambda: ask(MODES.TOOLS_STRICT),
    "JSON_SCHEMA": lambda: ask(MODES.JSON_SCHEMA),
    "JSON": lambda: ask(MODES.JSON, Free, question="Write an empty object: {}"),
    "RESPONSES_TOOLS": lambda: ask(MODES.RESPONSES_TOOLS, limit="max_output_tokens"),
    "parts of a stream, TOOLS": lambda: stream_parts(MODES.TOOLS),
    "parts of a stream, JSON_SCHEMA": lambda: stream_parts(MODES.JSON_SCHEMA),
    "a retry, TOOLS": lambda: retry(MODES.TOOLS),
    "a retry, JSON_SCHEMA": lambda: retry(MODES.JSON_SCHEMA),
}

if __name__ == "__main__":
    run_checks(CHECKS, ("instructor", "openai"))
