"""Chat templates are rendered in a process that can be killed, because a template is a program of a stranger.

A template may loop, recurse, or ask for gigabytes, at the first rendering or at the thousandth. Every rendering
therefore happens in one persistent process of Jinja alone, with a deadline and a limit of memory; a rendering costs a
fraction of a millisecond more than here. `render_template` is what that process runs. It renders as transformers does
(`transformers.utils.chat_template_utils`, without its import): the same sandbox, filters, globals and fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from evolvent.errors import ConfigError, LimitExceeded
from evolvent.workers import SharedWorker

if TYPE_CHECKING:
    from jinja2 import Template
    from transformers import PreTrainedTokenizerBase

__all__ = ["TemplateRefusal", "apply_template", "render_template", "start_template_process"]

RENDER_S, RENDER_MIB = 20.0, 512
MAX_TEMPLATE_CHARS = 2**20
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class TemplateRefusal(ValueError):
    """A template raised an error; the text is its message."""


def apply_template(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, object]],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool,
) -> str:
    """Renders a conversation with the chat template of a tokenizer.

    Raises:
        TemplateRefusal: the template raised an error. LimitExceeded: it was ended by the deadline or the memory limit.
    """
    try:
        source = tokenizer.get_chat_template(tools=[dict(tool) for tool in tools] if tools else None)
    except (AttributeError, ValueError) as error:
        raise TemplateRefusal(str(error)) from error
    if not isinstance(source, str) or len(source) > MAX_TEMPLATE_CHARS:
        size = f"{len(source):,} characters" if isinstance(source, str) else type(source).__name__
        raise LimitExceeded(
            "the chat template is too large", value=size, expected=f"at most {MAX_TEMPLATE_CHARS:,} characters"
        )
    if not messages:
        raise TemplateRefusal("a conversation without messages cannot be rendered")
    special = {name: token if isinstance(token, str) else list(token) for name, token in _special_tokens(tokenizer)}
    variables = {"messages": messages, "tools": tools or None, "add_generation_prompt": add_generation_prompt}
    try:
        answer, failure = _RENDERER.call(source, {**special, "documents": None, **variables})
    except ConfigError as error:
        raise TemplateRefusal(f"the conversation is not JSON: {error}") from error
    if failure:
        raise LimitExceeded(
            "the chat template was ended",
            value=failure,
            expected=f"a rendering within {_RENDERER.wall_s:g} s and {_RENDERER.memory_mb} MiB",
            hint="set another chat template",
        )
    text, refusal = answer if isinstance(answer, list) else (None, "no text")
    if not isinstance(text, str):
        raise TemplateRefusal(str(refusal))
    return text


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, Any]]:
    return [(str(name), token) for name, token in dict(tokenizer.special_tokens_map).items()]


def start_template_process() -> None:
    """Starts the process in the background, so that the first rendering finds it ready."""
    _RENDERER.start()


def render_template(source: str, variables: dict[str, object]) -> list[str | None]:
    """Renders a template; returns the text and None, or None and the reason why there is none."""
    from jinja2 import TemplateError

    rows: Any = variables["messages"]
    messages = [
        _alias_reasoning({name: field for name, field in message.items() if field is not None}) for message in rows
    ]
    try:
        return [_compile(source).render(**{**variables, "messages": messages}), None]
    except (TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        return [None, str(error)[:500] or type(error).__name__]
    except RecursionError:
        return [None, "it recurses too deeply"]
    except MemoryError:
        return [None, f"it used more than {RENDER_MIB} MiB of memory"]


def _alias_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Fills the names of a thought that templates read from the name that the message has."""
    thought = next((message[key] for key in _REASONING_FIELDS if message.get(key) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


@lru_cache(maxsize=64)
def _compile(source: str) -> Template:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class GenerationBlock(Extension):
        """Renders `{% generation %}` blocks as they are; transformers also notes where they stand."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

        def _render(self, caller: Any) -> Any:
            return caller()

    class PlainDict:
        """Makes dicts, without access to the type."""

        def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
            return dict(*args, **named)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    class PlainNamespace(Namespace):
        """A namespace without names that begin with an underscore."""

        def __init__(*args: Any, **named: Any) -> None:
            self, *pairs = args
            attributes = dict(*pairs, **named)
            for name in attributes:
                _refuse_private(name)
            Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_private(name)
            Namespace.__setitem__(self, name, value)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": PlainDict(),
        "namespace": PlainNamespace,
    }
    return environment.from_string(source)


def _refuse_private(name: object) -> None:
    from jinja2.exceptions import SecurityError

    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a name of a namespace begins with an underscore: {name!r}")


def _raise_exception(message: object) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_WARM_UP = ["{{ messages[0].content }}", {"messages": [{"role": "user", "content": "x"}]}]
_RENDERER = SharedWorker(render_template, wall_s=RENDER_S, memory_mb=RENDER_MIB, warmup_args=_WARM_UP)
