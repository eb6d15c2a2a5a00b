"""Endpoint classes by server dialect: OpenAI's routes alone, or the additional routes of vLLM or SGLang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from evolvent.errors import ConfigError, Problem, unknown_name_problem

if TYPE_CHECKING:
    from evolvent.engine.endpoint import Endpoint

__all__ = ["ServerDialect", "endpoint_type", "share_endpoints"]

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


def share_endpoints(addresses: str, *, num_ranks: int) -> list[str]:
    """Returns the addresses of the endpoints that ranks share.

    >>> share_endpoints("http://a:8000/v1, http://b:8000/v1", num_ranks=2)
    ['http://a:8000/v1', 'http://b:8000/v1']

    Args:
        addresses: one address, or several with commas between them.
        num_ranks: number of ranks; each plays on one endpoint.
    Raises:
        ConfigError: more endpoints than ranks.
    """
    urls = [url.strip() for url in addresses.split(",") if url.strip()]
    if len(urls) > num_ranks:
        message = f"each rank plays on one endpoint: got {len(urls)} endpoints for {num_ranks} rank(s)"
        hint = f"start {len(urls)} ranks with torchrun, or name at most {num_ranks}"
        raise ConfigError([Problem("endpoint", message, hint)])
    return urls
