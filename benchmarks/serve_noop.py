"""The peer of `benchmarks.serve`: a plain Starlette app whose routes answer a constant, with our server's settings.

    python -m benchmarks.serve_noop crafting=180 gridworld=310

`POST /crafting/step` answers 180 bytes of JSON. There is no guard, no session and no world here; the bodies of requests
are not even parsed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from evolvent.serve.listen import listen, listening_url


def route(name: str, size: int) -> Route:
    """A route that answers JSON of this size."""
    told = {"observation": "", "reward": 0.0, "done": False}
    told["observation"] = "x" * max(0, size - len(json.dumps(told, separators=(",", ":"))))

    async def step(request: Request) -> JSONResponse:
        return JSONResponse(told)

    return Route(f"/{name}/step", step, methods=["POST"])


def main(arguments: Sequence[str] | None = None) -> None:
    given = [each.split("=") for each in (sys.argv[1:] if arguments is None else arguments)]
    app = Starlette(routes=[route(name, int(size)) for name, size in given])
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws_max_size=8 << 20,
        ws_per_message_deflate=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    with listen("127.0.0.1", 0) as bound:
        print(f"a no-op at {listening_url(bound)}", flush=True)
        asyncio.run(uvicorn.Server(config).serve(sockets=[bound]))


if __name__ == "__main__":
    main()
