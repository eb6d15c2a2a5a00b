"""Endpoints by what they speak: OpenAI's routes alone, or those that vLLM or SGLang have beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from evolvent.errors import ConfigError, unknown

if TYPE_CHECKING:
    from evolvent.engine.endpoint import Endpoint

__all__ = ["ServerDialect", "endpoint_type"]

ServerDialect = Literal["openai", "vllm", "sglang"]
"""What a server of a policy speaks; a server of ours speaks "openai" and "sglang"."""


def endpoint_type(dialect: str) -> type[Endpoint]:
    """The class of endpoints that speak so; made of an address and a model as `Endpoint` is.

    Raises:
        ConfigError: nobody speaks so.
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
    raise ConfigError([unknown("dialect", dialect, get_args(ServerDialect))])
