"""Endpoint classes by server dialect: OpenAI's routes alone, or the additional routes of vLLM or SGLang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from evolvent.errors import ConfigError, unknown_name_problem

if TYPE_CHECKING:
    from evolvent.engine.endpoint import Endpoint

__all__ = ["ServerDialect", "endpoint_type"]

ServerDialect = Literal["openai", "vllm", "sglang"]
"""What a server of a policy speaks; a server of ours speaks "openai" and "sglang"."""


def endpoint_type(dialect: str) -> type[Endpoint]:
    """Returns the endpoint class for a server dialect; it is constructed like `Endpoint`.

    Raises:
        ConfigError: an unknown dialect.
    """
    if dialect == "openai":
        from evolvent.engine.endpoint import Endpoint

        return Endpoint
    if dialect == "vllm":
        from evolvent.engine.vllm import VllmEndpoint

        return VllmEndpoint
    if dialect == "sglang":
        from evolvent.engine.sglang import SglangEndpoint

        return SglangEndpoint
    raise ConfigError([unknown_name_problem("dialect", dialect, get_args(ServerDialect))])
