"""Policies behind a real server, and an endpoint that answers what a test wrote down; both over real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from types import GeneratorType

import evolvent as ev
from evolvent.serve.connections import ConnectionTable
from evolvent.serve.listen import listen, listening_url
from evolvent.serve.openai.face import PolicyDialect, build_policy_app
from evolvent.serve.openai.generator import Generator
from evolvent.serve.openai.reply import encode_refusal
from evolvent.serve.protocol import LimitedServer, make_server_config
from evolvent.web import Access
from tests.http_server import QuietHTTPServer

NAME = "small"


class Served:
    """A running server: its address, its face, and the loop that it runs on."""

    def __init__(self, face, url):
        self.face, self.url, self.loop, self.table = face, url, None, None

    def sync(self, policy):
        """Give it other weights."""
        asyncio.run_coroutine_threadsafe(self.face.sync(policy), self.loop).result(60)

    @property
    def generator(self):
        return self.face._generator


@contextmanager
def policy_server(
    policy, *, engine=None, access=None, port=0, recorder=None, reload=None, connections=None, **settings
) -> Iterator[Served]:
    """Serve a policy on a free port; stopped at the end."""
    generator = Generator(policy, engine or ev.LocalEngine(policy, slots=16), **settings)
    face = PolicyDialect(generator, NAME, recorder=recorder, reload=reload)
    connections = connections or ConnectionTable()
    app = build_policy_app(face, access=access or Access(), connections=connections)
    listener = listen("127.0.0.1", port)
    served = Served(face, listening_url(listener) + "/v1")
    served.table = connections
    server = LimitedServer(
        make_server_config(app, connections, encode_refusal=encode_refusal, log_level="error", ws="none")
    )

    async def serve():
        served.loop = asyncio.get_running_loop()
        await server.serve([listener])

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
        yield served
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class Scripted:
    """An endpoint that answers with what `answer(number, path, body)` returns: (status, headers, data).

    Data are bytes, a JSON value, or a generator of bytes (with a content-length). None cuts the
    connection. `asked` holds every request: (path, headers, body).
    """

    def __init__(self, answer: Callable):
        self.answer, self.asked, self.lock = answer, [], threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _any(self):
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        script = self.server.script
        with script.lock:
            script.asked.append((self.path, dict(self.headers), body))
            number = len(script.asked) - 1
        told = script.answer(number, self.path, body)
        if told is None:
            self.close_connection = True
            self.connection.shutdown(2)
            return
        status, headers, data = told
        if not isinstance(data, GeneratorType):
            data = [data if isinstance(data, bytes) else json.dumps(data).encode()]
            headers = {"content-length": str(len(data[0])), **headers}
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        with suppress(OSError):  # the client has gone
            for part in data:
                self.wfile.write(part)

    do_GET = do_POST = _any

    def log_message(self, *words):
        pass


@contextmanager
def scripted(answer) -> Iterator[tuple[str, Scripted]]:
    """Serve a script; yields its address and what was asked."""
    server = QuietHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.script = Scripted(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", server.script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def completion(text, *, ids=(5, 6), prompt=(1, 2, 3), logprobs=(-0.5, -0.25), **more):
    """The body of a chat completion as an endpoint with token ids gives it; None leaves a part out."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", "logprobs": None}
    if ids is not None:
        choice["token_ids"] = list(ids)
    if logprobs is not None:
        choice["logprobs"] = {"content": [{"token": "t", "logprob": value} for value in logprobs]}
    row = {
        "id": "x",
        "object": "chat.completion",
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    if prompt is not None:
        row["prompt_token_ids"] = list(prompt)
    return row | more
