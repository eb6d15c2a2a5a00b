"""`/v1/responses` in OpenAI's form, as a face of chat completions: items become messages, and a reply becomes items.

Nothing is stored between requests: a client sends the whole conversation as `input`, as agents do with `store` false.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from evolvent.errors import ConfigError, Problem
from evolvent.serve.openai.reload import parse_model
from evolvent.serve.wire import encode_json
from evolvent.trajectory import JsonObject

__all__ = ["ResponseFormat", "ResponsesRequest", "parse_responses"]

_IGNORED_FIELDS = ("user", "store", "service_tier", "prompt_cache_key", "safety_identifier", "include", "truncation")
_TEXT_PARTS = ("input_text", "output_text", "text")
_MAX_ITEMS = 4096  # items of a conversation


class ResponsesRequest(BaseModel):
    """The body of `/v1/responses`; its other fields are those of a chat completion."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str = Field(description="the name of the model")
    input: str | list[dict[str, object]] = Field(description="the user's text, or the conversation as items")
    instructions: str | None = Field(default=None, description="the system message")
    tools: list[dict[str, object]] = Field(default=[], description="functions that may be called")
    tool_choice: str | dict[str, object] = Field(default="auto", description="as in a chat; a function by its name")
    parallel_tool_calls: bool = Field(default=True, description="whether one reply may make several calls")
    temperature: float = Field(default=1.0, description="of sampling")
    top_p: float = Field(default=1.0, description="the share of probability that is kept")
    max_output_tokens: int | None = Field(default=None, description="most tokens of a reply")
    text: dict[str, object] = Field(default={}, description="`format`: text, json_object or json_schema")
    metadata: dict[str, object] = Field(default={}, description="names of session and task, where the server records")
    stream: bool = Field(default=False, description="send the reply as it is written")

    def to_chat(self) -> dict[str, object]:
        """Returns the body of the chat completion that answers this request.

        Raises:
            ConfigError: items, tools or a format of another form.
        """
        row: dict[str, object] = {
            "model": self.model,
            "messages": self._to_messages(),
            "parallel_tool_calls": self.parallel_tool_calls,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "metadata": self.metadata,
            "stream": self.stream,
        }
        if self.stream:
            row["stream_options"] = {"include_usage": True}
        if self.max_output_tokens is not None:
            row["max_tokens"] = self.max_output_tokens
        if self.tools:
            choice: object = self.tool_choice
            if isinstance(choice, Mapping) and choice.get("type") == "function":
                choice = {"type": "function", "function": {"name": choice.get("name")}}
            row |= {"tools": [_to_chat_tool(tool) for tool in self.tools], "tool_choice": choice}
        reply_format = self.text.get("format")
        if isinstance(reply_format, Mapping):
            schema = {name: value for name, value in reply_format.items() if name != "type"}
            row["response_format"] = {
                "type": reply_format.get("type"),
                **({"json_schema": schema} if reply_format.get("type") == "json_schema" else {}),
            }
        return row

    def _to_messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        text_item: dict[str, object] = {"role": "user", "content": self.input}
        items = [text_item] if isinstance(self.input, str) else self.input
        if len(items) > _MAX_ITEMS:
            raise ConfigError([Problem("input", f"got {len(items)} items, expected at most {_MAX_ITEMS}")])
        for number, item in enumerate(items):
            kind = item.get("type", "message")
            if kind == "message":
                content = _read_content(item.get("content"), f"input[{number}].content")
                messages.append({"role": item.get("role"), "content": content})
            elif kind == "function_call":
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                last = messages[-1] if messages else {}
                if last.get("role") == "assistant":  # text and calls of one reply are one message
                    last["tool_calls"] = [*(last.get("tool_calls") or ()), call]
                else:
                    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            elif kind == "function_call_output":
                output = item.get("output")
                text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
                messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
            else:
                hint = "use messages, function_call and function_call_output"
                raise ConfigError([Problem(f"input[{number}].type", f"got {str(kind)[:80]!r}", hint)])
        return messages


def parse_responses(row: object) -> ResponsesRequest:
    """Parses a request. Raises ConfigError with every mistake at once."""
    if isinstance(row, Mapping):
        row = {key: value for key, value in row.items() if value is not None and key not in _IGNORED_FIELDS}
    return parse_model(ResponsesRequest, row, example='{"model": "NAME", "input": "Hello"}')


def _to_chat_tool(tool: Mapping[str, Any]) -> dict[str, object]:
    """Returns a tool in the form of a chat; others than functions are refused there."""
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": tool.get("type"), "function": function}


def _read_content(content: object, path: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [
        part.get("text") if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS else None for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError([Problem(path, f"got {content!r:.80}", "pass text, or a list of text parts")])
    return "".join(map(str, texts))


class ResponseFormat:
    """Writes the reply to a request as a response, or as the events of its stream.

    Args:
        request: the request.
    """

    def __init__(self, request: ResponsesRequest) -> None:
        self._request = request
        self._number = 0

    def body(self, reply: JsonObject) -> dict[str, object]:
        """Returns the response that equals a whole chat completion."""
        choice = reply["choices"][0]
        message = choice["message"]
        output = _message_items(message.get("content"), message.get("refusal"))
        output += [_call_item(call) for call in message.get("tool_calls") or ()]
        return self._response(reply, output, finish_reason=choice["finish_reason"], usage=reply.get("usage"))

    def _response(
        self,
        head: JsonObject,
        output: Sequence[JsonObject],
        *,
        finish_reason: str | None,
        usage: JsonObject | None,
    ) -> dict[str, object]:
        request, status = self._request, "in_progress"
        if finish_reason is not None:
            status = "incomplete" if finish_reason == "length" else "completed"
        counts = usage or {}
        return {
            "id": "resp_" + str(head["id"]).rpartition("-")[2],
            "object": "response",
            "created_at": head["created"],
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": head["model"],
            "output": list(output),
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": None,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "text": request.text or {"format": {"type": "text"}},
            "tool_choice": request.tool_choice,
            "tools": request.tools,
            "metadata": request.metadata,
            "usage": {
                "input_tokens": counts.get("prompt_tokens", 0),
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": counts.get("completion_tokens", 0),
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts.get("total_tokens", 0),
            }
            if usage is not None
            else None,
        }

    async def stream_events(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yields the events of a response for the events of a chat completion's stream."""
        head: JsonObject | None = None
        text, calls, usage = "", list[JsonObject](), None
        refusal, finish_reason = "", "stop"
        item: dict[str, Any] = {}
        async for line in lines:
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                break
            chunk = json.loads(data)
            if "error" in chunk:
                yield self._event(
                    "error", {"code": chunk["error"].get("code"), "message": chunk["error"]["message"], "param": None}
                )
                return
            if head is None:
                head = chunk
                for name in ("response.created", "response.in_progress"):
                    response = self._response(head, [], finish_reason=None, usage=None)
                    yield self._event(name, {"response": response})
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                delta, finish_reason = choice["delta"], choice["finish_reason"] or finish_reason
                calls += delta.get("tool_calls") or ()
                refusal += delta.get("refusal") or ""
                if delta.get("content"):
                    if not text:
                        (item,) = _message_items("", None, status="in_progress")
                        part = item["content"][0]
                        yield self._event(
                            "response.output_item.added", {"output_index": 0, "item": {**item, "content": []}}
                        )
                        yield self._event("response.content_part.added", {**_locate(item), "part": part})
                    text += delta["content"]
                    yield self._event(
                        "response.output_text.delta", {**_locate(item), "delta": delta["content"], "logprobs": []}
                    )
        if head is None:
            return
        output: list[JsonObject] = []
        if text or not (calls or refusal):
            (done,) = _message_items(text, None)
            done["id"] = item.get("id", done["id"])
            if text:
                yield self._event("response.output_text.done", {**_locate(done), "text": text, "logprobs": []})
                yield self._event("response.content_part.done", {**_locate(done), "part": done["content"][0]})
                yield self._event("response.output_item.done", {"output_index": 0, "item": done})
            output.append(done)
        elif refusal:
            output += _message_items(None, refusal)
        for call in calls:
            row, location = _call_item(call), {"output_index": len(output)}
            started = {**row, "arguments": "", "status": "in_progress"}
            yield self._event("response.output_item.added", {**location, "item": started})
            item_location = {**location, "item_id": row["id"]}
            yield self._event("response.function_call_arguments.delta", {**item_location, "delta": row["arguments"]})
            fields = {"arguments": row["arguments"], "name": row["name"]}
            yield self._event("response.function_call_arguments.done", {**item_location, **fields})
            yield self._event("response.output_item.done", {**location, "item": row})
            output.append(row)
        response = self._response(head, output, finish_reason=finish_reason, usage=usage)
        yield self._event(f"response.{response['status']}", {"response": response})

    def _event(self, name: str, fields: JsonObject) -> bytes:
        row = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {name}\ndata: ".encode() + encode_json(row) + b"\n\n"


def _locate(item: JsonObject) -> dict[str, object]:
    return {"item_id": item["id"], "output_index": 0, "content_index": 0}


def _message_items(
    text: str | None, refusal: str | None, *, status: Literal["in_progress", "completed"] = "completed"
) -> list[dict[str, Any]]:
    """Returns the message of a reply, or nothing where it only calls."""
    if text is None and not refusal:
        return []
    part: dict[str, object] = {"type": "output_text", "text": text, "annotations": []}
    if refusal:
        part = {"type": "refusal", "refusal": refusal}
    item_id = f"msg_{secrets.token_hex(12)}"
    return [{"id": item_id, "type": "message", "role": "assistant", "status": status, "content": [part]}]


def _call_item(call: JsonObject) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": f"fc_{secrets.token_hex(12)}",
        "type": "function_call",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": function["arguments"],
        "status": "completed",
    }
