"""Forms of training rows: every command recognizes the same ones, and reads them as the same messages.

    messages           {"messages": [{"role", "content", "tool_calls"?, "weight"?}], "tools"?, "functions"?}  (OpenAI)
    sharegpt           {"conversations": [{"from", "value"}], "system"?, "tools"?}
    agenttraj          the same with "item_id", and "loss" in the turns
    agentinstruct      the same with "id", and "loss" in the turns
    prompt-completion  {"prompt", "completion"}: text or messages  (TRL)
    alpaca             {"instruction", "input"?, "output", "system"?, "history"?}
    questions          {"question", "answer"} or {"problem", "solution"}  (GSM8K, MATH)
    calls              {"query", "tools", "answers"}  (xLAM, Hammer)
    preferences        {"prompt"?, "chosen", "rejected"}, or {"input", "preferred_output", "non_preferred_output"}
    text               {"text"}

A field that is null counts as missing, because tables fill what a row does not have with null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from evolvent.errors import SampleInvalid
from evolvent.messages import ROLES, Call, Message, Tool, parse_weight
from evolvent.schemas import parse_tool
from evolvent.trajectory import JsonObject

__all__ = [
    "FORM_TITLES",
    "UNKNOWN_FORM",
    "Conversation",
    "Form",
    "Preference",
    "describe_forms",
    "detect_form",
    "is_conversation",
    "parse_conversation",
    "parse_list",
    "parse_preference",
    "parse_tools",
    "standardize_row",
]

Form = Literal[
    "messages",
    "sharegpt",
    "agenttraj",
    "agentinstruct",
    "prompt-completion",
    "alpaca",
    "questions",
    "calls",
    "preferences",
    "text",
]
FORM_TITLES: Mapping[str, str] = {
    "messages": "conversations (OpenAI messages)",
    "sharegpt": "conversations (ShareGPT)",
    "agenttraj": "conversations (AgentTraj)",
    "agentinstruct": "conversations (AgentInstruct)",
    "prompt-completion": "prompts with completions",
    "alpaca": "instructions (Alpaca)",
    "questions": "questions with answers",
    "calls": "function calls",
    "preferences": "preferences",
    "text": "text",
}
UNKNOWN_FORM = "unknown"
"""The name under which rows of no known form are counted."""
_ROLE_OF_SPEAKER: Mapping[str, str] = {
    **{role: role for role in ROLES},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "bing", "bard", "model"), "assistant"),
    **dict.fromkeys(("observation", "function_response", "function", "ipython", "tool_response"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "call"),
}
_INSTRUCTION_ROLES = ("system", "developer")
_THOUGHT_TYPES = ("thinking", "reasoning")  # of the parts of a message's content
_QUESTIONS = (("question", "answer"), ("problem", "solution"))
_TALK_FIELDS = ("messages", "conversations", "system", "tools", "functions")
_FIELDS_OF_FORM: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("messages", "sharegpt", "agenttraj", "agentinstruct"), _TALK_FIELDS),
    "prompt-completion": ("prompt", "completion", "label", *_TALK_FIELDS),
    "alpaca": ("instruction", "input", "output", "history", *_TALK_FIELDS),
    "questions": ("question", "answer", "problem", "solution", "history", *_TALK_FIELDS),
    "calls": ("query", "answers", *_TALK_FIELDS),
    "preferences": (
        *("prompt", "chosen", "rejected", "input", "preferred_output", "non_preferred_output"),
        *("instruction", "history", "question", "problem", *_TALK_FIELDS),
    ),
}
_TRANSCRIPT_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):[ \n]?")
_MIN_REPEATED_WORDS = 3  # a text prompt of fewer words may open both replies by chance


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation: its messages, and the tools that it offers."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Preference:
    """A pair of replies: the messages before them, the messages of both sides, and the tools that are offered."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    tools: tuple[Tool, ...] = field(default=())


def detect_form(row: object) -> Form | None:
    """Returns the form of a row; None where it has no known form.

    >>> detect_form({"conversations": [{"from": "human", "value": "Hi"}]})
    'sharegpt'
    >>> detect_form({"prompt": "1 + 1", "chosen": "2", "rejected": "3"})
    'preferences'
    """
    if not isinstance(row, Mapping):
        return None
    names = {str(name) for name, value in row.items() if value is not None}
    if {"chosen", "rejected"} <= names or {"preferred_output", "non_preferred_output"} <= names:
        return "preferences"
    if {"tools", "answers"} <= names:
        return "calls"
    if "messages" in names and parse_list(row["messages"]) is not None:
        return "messages"
    if "conversations" in names and (turns := parse_list(row["conversations"])) is not None:
        return _detect_turns(turns, names)
    if {"prompt", "completion"} <= names:
        return "prompt-completion"
    if {"instruction", "output"} <= names:
        return "alpaca"
    if any({question, answer} <= names for question, answer in _QUESTIONS):
        return "questions"
    return "text" if "text" in names else None


def _detect_turns(turns: Sequence[object], names: set[str]) -> Form:
    if "item_id" in names:
        return "agenttraj"
    turn_names = {str(name) for turn in turns if isinstance(turn, Mapping) for name in turn}
    if "loss" in turn_names:
        return "agentinstruct" if "id" in names else "agenttraj"
    return "messages" if "role" in turn_names and "from" not in turn_names else "sharegpt"


def is_conversation(form: str | None) -> bool:
    """Returns whether rows of a form can be read as one conversation."""
    return form is not None and form not in ("preferences", "text")


def describe_forms(counts: Mapping[str, int]) -> str:
    """Describes how many rows of each form there are, in one line.

    >>> describe_forms({"sharegpt": 120})
    'conversations (ShareGPT), 120 rows'
    """
    titles = {**FORM_TITLES, UNKNOWN_FORM: "an unknown form"}
    return "; ".join(
        f"{titles[form]}, {count:,} row{'s' * (count != 1)}"
        for form, count in sorted(counts.items(), key=lambda entry: -entry[1])
    )


def standardize_row(row: JsonObject) -> JsonObject:
    """Converts a row to OpenAI messages, or to a prompt with its two replies; other fields, and rows of text, stay.

    Raises:
        SampleInvalid: see `parse_conversation` and `parse_preference`.

    >>> standardize_row({"id": 7, "prompt": "1 + 1?", "completion": "2"})["messages"][1]
    {'role': 'assistant', 'content': '2'}
    """
    form = detect_form(row)
    if form == "text":
        return row
    fields = _FIELDS_OF_FORM[form] if form is not None else ()
    extra_fields = {name: value for name, value in row.items() if name not in fields and value is not None}
    parts: dict[str, Sequence[Message]]
    if form == "preferences":
        pair = parse_preference(row)
        parts, tools = {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}, pair.tools
    else:
        conversation = parse_conversation(row)
        parts, tools = {"messages": conversation.messages}, conversation.tools
    messages = {name: [message.as_openai() for message in part] for name, part in parts.items()}
    return {**extra_fields, **messages, **({"tools": [tool.as_openai() for tool in tools]} if tools else {})}


# ------------------------------------------------------------------ conversations


def parse_conversation(row: object) -> Conversation:
    """Reads a row of any form but text as a conversation; of preferences it is the prompt with the chosen side.

    Raises:
        SampleInvalid: an unknown form, a turn without text or known role, or tools and calls that cannot be read.

    >>> parse_conversation({"instruction": "Add.", "input": "1 + 1", "output": "2"}).messages[0].text
    'Add.\\n1 + 1'
    """
    form = detect_form(row)
    if form is None or form == "text" or not isinstance(row, Mapping):
        raise _form_error(row, '{"messages": [...]} or {"prompt", "completion"}, or another form of conversations')
    if form == "preferences":
        pair = parse_preference(row)
        return Conversation((*pair.prompt, *pair.chosen), pair.tools)
    tools = parse_tools(row)
    if form == "calls":
        calls = tuple(_parse_call(entry) for entry in _require_list(row["answers"], "answers"))
        messages = (
            _parse_side(row["messages"], "user") if row.get("messages") else [_text_message("user", row, "query")]
        )
        messages.append(Message("assistant", None if calls else "[]", calls))
    elif form == "prompt-completion":
        if row.get("label") is False:  # TRL's unpaired preferences
            raise SampleInvalid("the completion is labeled as a bad one", value=False, expected="a completion to learn")
        prompt, completion = _parse_side(row["prompt"], "user"), _parse_side(row["completion"], "assistant")
        messages = [*prompt, *_remove_repeated_prompt(prompt, completion)]
    elif form in ("alpaca", "questions"):
        messages = _parse_instruction(row)
    else:
        name = "messages" if row.get("messages") is not None else "conversations"
        messages = _parse_turns(_require_list(row[name], name))
    return Conversation((*_parse_system(row, messages), *messages), tools)


def _form_error(row: object, expected: str) -> SampleInvalid:
    names = sorted(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
    return SampleInvalid("unknown row format", value=names, expected=expected)


def _parse_system(row: JsonObject, messages: Sequence[Message]) -> list[Message]:
    """Returns the message of the field `system`, unless the conversation begins with instructions."""
    system = row.get("system")
    if system is None or system == "" or _count_instructions(messages):
        return []
    return [_text_message("system", row, "system")]


def _text_message(role: str, row: JsonObject, name: str) -> Message:
    text = row.get(name)
    if not isinstance(text, str) or not text.strip():
        raise SampleInvalid(f"{name} of the row is not text", value=text, expected="text")
    return Message(role, text)


def _parse_instruction(row: JsonObject) -> list[Message]:
    """Parses an instruction or question with its answer, and the exchanges before it (`history`)."""
    question, answer = next(
        names for names in (("instruction", "output"), *_QUESTIONS) if all(row.get(name) is not None for name in names)
    )
    return [*_parse_request(row, question), _text_message("assistant", row, answer)]


def _parse_request(row: JsonObject, name: str) -> list[Message]:
    messages = list[Message]()
    for exchange in _require_list(row["history"], "history") if row.get("history") else []:
        if not isinstance(exchange, Sequence) or isinstance(exchange, str) or len(exchange) != 2:
            raise SampleInvalid("history of the row is not a list of exchanges", value=exchange, expected="two texts")
        for role, text in zip(("user", "assistant"), exchange, strict=True):
            messages.append(_text_message(role, {"history": text}, "history"))
    request = _text_message("user", row, name)
    if name == "instruction" and isinstance(row.get("input"), str) and row["input"].strip():
        request = replace(request, content=f"{request.text}\n{row['input']}")
    return [*messages, request]


def _parse_side(value: object, role: str) -> list[Message]:
    """Parses a prompt or reply: text, one message, or messages."""
    turns = [value] if isinstance(value, Mapping) else parse_list(value)
    if isinstance(value, str) and not (turns and all(_is_turn(turn) for turn in turns)):
        return [Message(role, value)]  # also a text that is a list, such as a program's
    if not turns:
        raise SampleInvalid(f"the {role} of the row is neither text nor messages", value=value)
    return _parse_turns(turns)


def _is_turn(value: object) -> bool:
    names = set(value) if isinstance(value, Mapping) else set[object]()
    return {"from", "value"} <= names or ("role" in names and bool({"content", "tool_calls", "function_call"} & names))


def _parse_turns(turns: Sequence[object]) -> list[Message]:
    """Parses turns of OpenAI's form (`role`, `content`) or of ShareGPT's (`from`, `value`)."""
    messages = list[Message]()
    for number, turn in enumerate(turns):
        message, is_call = _parse_turn(turn, number)
        previous = messages[-1] if messages else None
        if is_call and previous is not None and previous.role == "assistant" and previous.extra == message.extra:
            message = replace(messages.pop(), calls=(*previous.calls, *message.calls))  # a call of the reply before it
        messages.append(message)
    return messages


def _parse_turn(turn: object, number: int) -> tuple[Message, bool]:
    """Parses one turn; also returns whether it is a turn of its own for a call, as in ShareGPT's `function_call`."""
    if not isinstance(turn, Mapping) or "from" not in turn or turn.get("role") is not None:
        return Message.of_openai(_normalize_message(turn)), False
    speaker, value = turn["from"], turn.get("value", turn.get("content"))
    role = _ROLE_OF_SPEAKER.get(speaker.lower()) if isinstance(speaker, str) else None
    if role is None:
        expected = "human, gpt, system, function_call, observation, tool, or a role of OpenAI's messages"
        raise SampleInvalid(f"the speaker of turn {number} is unknown", value=speaker, expected=expected)
    weight = 1.0
    for name in ("weight", "loss"):
        factor = parse_weight(turn.get(name))
        weight *= 1.0 if factor is None else factor
    extra = {"weight": weight} if weight != 1.0 and role in ("assistant", "call") else {}
    if role == "call":
        entries = value if isinstance(value, list) else [value] if isinstance(value, Mapping) else _parse_calls(value)
        return Message("assistant", None, tuple(_parse_call(entry) for entry in entries), extra=extra), True
    if not isinstance(value, str):
        raise SampleInvalid(f"turn {number} has no text", value=value, expected='text in "value"')
    return Message(role, value, extra=extra), False


def _normalize_message(row: object) -> object:
    """Translates older and other spellings of a message to the ones that `Message` reads."""
    if not isinstance(row, Mapping):
        return row
    message = dict(row)
    if message.get("role") == "function":  # OpenAI's former name of a tool
        message["role"] = "tool"
    call = message.get("function_call")
    if isinstance(call, Mapping) and not message.get("tool_calls"):
        message["tool_calls"] = [{"type": "function", "function": call}]
    if "function_call" in message and (call is None or isinstance(call, Mapping)):
        del message["function_call"]
    calls = message.get("tool_calls")
    if isinstance(calls, str):
        message["tool_calls"] = parse_list(calls) or calls
    content, thought = message.get("content"), message.get("reasoning_content")
    if isinstance(content, list):
        thoughts = [part for part in content if isinstance(part, Mapping) and part.get("type") in _THOUGHT_TYPES]
        message["content"] = [part for part in content if part not in thoughts] or ""
        texts = [part.get("thinking") or part.get("text") or part.get("reasoning") for part in thoughts]
        thought = thought or "\n\n".join(text for text in texts if isinstance(text, str))
    thought = thought or message.get("thinking") or message.get("reasoning")
    if isinstance(thought, str) and thought.strip():
        for name in ("thinking", "reasoning"):
            message.pop(name, None)
        message["reasoning_content"] = thought
    return message


def _parse_calls(value: object) -> list[object]:
    """Parses the text of calls: JSON of one call or of several."""
    try:
        entries = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError) as error:
        raise SampleInvalid("the function call of a turn is not JSON", value=value, expected="JSON") from error
    if isinstance(entries, Mapping):
        return [entries]
    if not isinstance(entries, list) or not entries:
        raise SampleInvalid("the function call of a turn has no call", value=value, expected='{"name", "arguments"}')
    return entries


def _parse_call(entry: object) -> Call:
    if not isinstance(entry, Mapping):
        raise SampleInvalid("the call is not an object", value=entry, expected='{"name", "arguments"}')
    if entry.get("function") is not None:
        return Call.of_openai(entry)
    arguments = entry.get("arguments", entry.get("parameters"))
    return Call.of_openai(
        {"function": {"name": entry.get("name"), "arguments": {} if arguments is None else arguments}}
    )


# ------------------------------------------------------------------ tools


def parse_list(value: object) -> list[object] | None:
    """Returns a list that is given as itself, an array or JSON text, as tables hold it; None where it is neither."""
    if hasattr(value, "tolist"):  # an array of numpy, as data frames hold lists
        value = value.tolist()
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            return None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return list(value) if isinstance(value, list | tuple) else None


def _require_list(value: object, name: str) -> list[object]:
    entries = parse_list(value)
    if entries is None:
        raise SampleInvalid(f"{name} of the row is not a list", value=value, expected="a list, or JSON text of one")
    return entries


def parse_tools(row: JsonObject) -> tuple[Tool, ...]:
    """Returns the tools that a row offers in `tools` or `functions`, as a list or as its JSON text.

    Raises:
        SampleInvalid: neither, or a tool without a name.
    """
    tools = list[Tool]()
    for name in ("tools", "functions"):
        value = row.get(name)
        if value is None or value == "":
            continue
        tools += [parse_tool(entry) for entry in _require_list(value, name)]
    return tuple(tools)


# ------------------------------------------------------------------ preferences


def parse_preference(row: object) -> Preference:
    """Reads a row as a pair of replies.

    The prompt is a text, messages, an Alpaca instruction or a question. Where both sides repeat the prompt, it is read
    once; where no prompt is given, it is what both sides have in common at their beginning. Transcripts of `Human:` and
    `Assistant:` are read as messages.

    Raises:
        SampleInvalid: another form, or texts without a prompt.
    """
    if detect_form(row) != "preferences" or not isinstance(row, Mapping):
        raise _form_error(row, '{"prompt", "chosen", "rejected"}')
    tools = parse_tools(row)
    if row.get("chosen") is None:  # OpenAI
        request = row.get("input")
        if not isinstance(request, Mapping) or not request.get("messages"):
            raise SampleInvalid("input of the row has no messages", value=request, expected='{"messages": [...]}')
        prompt = _parse_turns(_require_list(request["messages"], "messages"))
        tools = (*tools, *parse_tools(request))
        sides = [_parse_side(row[name], "assistant") for name in ("preferred_output", "non_preferred_output")]
        return _make_preference(prompt, sides, tools)
    texts = [row["chosen"], row["rejected"]]
    if all(isinstance(text, str) and text.lstrip("\n").startswith("Human:") for text in texts):
        sides = [_parse_transcript(str(text)) for text in texts]
        return _make_preference(None, sides, tools)
    sides = [_parse_side(text, "assistant") for text in texts]
    prompt_or_none = _parse_prompt(row)
    if prompt_or_none is None and any(isinstance(text, str) for text in texts):
        raise SampleInvalid(
            "the pair of texts has no prompt", value=sorted(map(str, row)), expected='also the field "prompt"'
        )
    if prompt_or_none is not None:
        prompt_or_none = [*_parse_system(row, prompt_or_none), *prompt_or_none]
        sides = _remove_repeated_text(row.get("prompt"), sides, texts)
    return _make_preference(prompt_or_none, sides, tools)


def _parse_prompt(row: JsonObject) -> list[Message] | None:
    if row.get("prompt") is not None:
        return _parse_side(row["prompt"], "user")
    for name in ("messages", "conversations"):
        if row.get(name) is not None:
            return _parse_turns(_require_list(row[name], name))
    for name in ("instruction", "question", "problem"):
        if row.get(name) is not None:
            return _parse_request(row, name)
    return None


def _make_preference(
    prompt: list[Message] | None, sides: Sequence[list[Message]], tools: tuple[Tool, ...]
) -> Preference:
    """Makes the pair; the beginning that both sides have in common is the prompt, or repeats it."""
    num_shared = 0
    while num_shared < min(map(len, sides)) and sides[0][num_shared] == sides[1][num_shared]:
        num_shared += 1
    shared = sides[0][:num_shared]
    if prompt is None:
        prompt = shared
    else:
        num_rules, num_shared_rules = _count_instructions(prompt), _count_instructions(shared)
        question, repeated = prompt[num_rules:], shared[num_shared_rules:]
        if len(repeated) >= len(question) and _same_texts(repeated[: len(question)], question):
            prompt = [*(prompt[:num_rules] or shared[:num_shared_rules]), *repeated]
        elif not repeated or not _same_texts(repeated, question[-len(repeated) :]):
            num_shared = 0
    return Preference(tuple(prompt), tuple(sides[0][num_shared:]), tuple(sides[1][num_shared:]), tools)


def _count_instructions(messages: Sequence[Message]) -> int:
    """Counts the instructions with which messages begin."""
    return next((i for i, message in enumerate(messages) if message.role not in _INSTRUCTION_ROLES), len(messages))


def _same_texts(messages: Sequence[Message], expected: Sequence[Message]) -> bool:
    return [(message.role, message.text.strip()) for message in messages] == [
        (message.role, message.text.strip()) for message in expected
    ]


def _remove_repeated_prompt(prompt: Sequence[Message], completion: list[Message]) -> list[Message]:
    """Removes the prompt from the beginning of a completion that is the whole conversation."""
    size = len(prompt)
    return completion[size:] if len(completion) > size and _same_texts(completion[:size], prompt) else completion


def _remove_repeated_text(prompt: object, sides: list[list[Message]], texts: Sequence[object]) -> list[list[Message]]:
    """Removes a text prompt with which the texts of both sides begin."""
    if not isinstance(prompt, str) or len(prompt.split()) < _MIN_REPEATED_WORDS:
        return sides
    replies = [text[len(prompt) :].strip() for text in texts if isinstance(text, str) and text.startswith(prompt)]
    return [[Message("assistant", reply)] for reply in replies] if len(replies) == 2 and all(replies) else sides


def _parse_transcript(text: str) -> list[Message]:
    """Parses the turns of a transcript, `Human: ...` and `Assistant: ...`, separated by blank lines."""
    pieces = _TRANSCRIPT_TURN.split(text.lstrip())
    roles = {"Human": "user", "Assistant": "assistant"}
    return [
        Message(roles[speaker], turn_text.strip())
        for speaker, turn_text in zip(pieces[1::2], pieces[2::2], strict=True)
    ]
