"""The other side of the native dialect, written from its description alone: a server that misbehaves on demand, and a
proxy that records, delays, swallows and cuts. Both are real sockets on ports that the system chooses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from urllib.parse import parse_qs

import uvicorn


def compact(value) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Refusal(Exception):
    """An answer with an error body."""

    def __init__(self, status, kind, message, **more):
        super().__init__(message)
        self.status, self.row = status, {"kind": kind, "message": message, "status": status, **more}


class NativePeer:
    """An ASGI app that serves worlds, each call a few lines.

    fault(op, body) is asked before a call is answered, which was carried out then: None, answer; "drop", break the
    connection; "hang", say nothing; "twice", answer twice; a number, answer after so many seconds; bytes, send these
    instead. `heard` lists (transport, op, body), `taken` every step that changed a world, `pages` replaces answers by
    (status, headers, body or iterable of parts), `denial` answers handshakes of WebSockets so.
    """

    def __init__(self, *worlds, token=None, protocol=1, capacity=1000):
        self.worlds = {world.name: world for world in worlds}
        self.token, self.protocol, self.capacity = token, protocol, capacity
        self.sessions, self.heard, self.count = {}, [], 0
        self.fault = lambda op, body: None
        self.pages, self.denial, self.headers, self.taken = {}, None, [], []
        self.later = set()

    # what is served

    def card(self, world):
        return {
            "name": world.name,
            "version": world.version,
            "instructions": world.instructions,
            "grammar": {"kind": type(world.grammar).__name__, "fields": {}},
            "horizon": world.horizon,
            "reward_range": list(world.reward_range),
            "tiers": list(world.tiers),
            "blocking": world.run_in_thread,
        }

    def row(self, task):
        return {key: getattr(task, key) for key in ("id", "world", "version", "kind", "tier", "split")} | {
            "spec": dict(task.spec)
        }

    def task(self, world, asked):
        for split in ("train", "dev", "test"):
            for tier in world.tiers:
                for task in world.tasks(split, tier):
                    if task.id == (asked if isinstance(asked, str) else asked["id"]):
                        return task
        raise Refusal(404, "ConfigError", "no such task")

    def create(self, body):
        if body["world"] not in self.worlds:
            raise Refusal(404, "ConfigError", "no such world")
        if len(self.sessions) >= self.capacity:
            raise Refusal(503, "AtCapacity", "full", retry_after_s=0.05)
        world = self.worlds[body["world"]]
        env = world.make(self.task(world, body["task"]))
        observation, info = env.reset(seed=body.get("seed"))
        self.count += 1
        name = f"s{self.count}"
        self.sessions[name] = {"env": env, "next": 0, "last": None, "done": False}
        return {"session": name, "observation": observation, "info": dict(info)}

    def step(self, body):
        session = self.sessions.get(body["session"])
        if session is None:
            raise Refusal(404, "SessionGone", "unknown session")
        said = (body["step"], body["action"])
        if session["last"] and session["last"][0] == said:
            return session["last"][1]
        if session["done"]:
            raise Refusal(409, "SessionGone", "the episode is over")
        if body["step"] != session["next"]:
            raise Refusal(409, "WrongStep", "another step is next", expected=session["next"])
        self.taken.append((body["session"], body["step"]))
        observation, reward, terminated, truncated, info = session["env"].step(body["action"])
        answer = {
            "observation": observation,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "info": dict(info),
            "step": body["step"],
        }
        session.update(next=body["step"] + 1, last=(said, answer), done=terminated or truncated)
        return answer

    def steps(self, body):
        results = []
        for item in body["steps"]:
            try:
                results.append(self.step(item))
            except Refusal as refusal:
                results.append({"error": refusal.row})
        return {"results": results}

    def close(self, body):
        session = self.sessions.pop(body["session"], None)
        if session:
            session["env"].close()
        return {"closed": session is not None}

    def page(self, method, path, query, body):
        """The op of a path and its answer."""
        parts = path.removeprefix("/v1").strip("/").split("/")
        match [method, *parts]:
            case ["GET", ""]:
                return "hello", {"name": "evolvent", "protocol": self.protocol, "worlds": list(self.worlds)}
            case ["GET", "worlds"]:
                return "worlds", {"worlds": [self.card(world) for world in self.worlds.values()]}
            case ["GET", "worlds", name, "tasks"]:
                tasks = self.worlds[name].tasks(query["split"][0], query["tier"][0])
                return "tasks", {"tasks": [self.row(task) for task in tasks]}
            case ["GET", "worlds", name, "tasks", task, "expert"]:
                actions = self.worlds[name].expert(self.task(self.worlds[name], task))
                return "expert", {"actions": None if actions is None else list(actions)}
            case ["GET", "worlds", name, "vocabulary"]:
                words = self.worlds[name].vocabulary()
                return "vocabulary", {"words": None if words is None else list(words)}
            case ["POST", "worlds", name, "score"]:
                score = self.worlds[name].score(body["rewards"], body["info"])
                return "score", {"raw": score.raw, "unit": score.unit, "success": score.success}
            case ["POST", "sessions"]:
                return "create", self.create(body)
            case ["POST", "sessions", session, "step"]:
                return "step", self.step({"session": session, **body})
            case ["POST", "steps"]:
                return "steps", self.steps(body)
            case ["DELETE", "sessions", session]:
                return "close", self.close({"session": session})
        raise Refusal(404, "WorldError", f"no page {path}")

    # how it travels

    async def __call__(self, scope, receive, send):
        self.headers.append({key.decode(): value.decode() for key, value in scope.get("headers", ())})
        allowed = not self.token or self.headers[-1].get("authorization") == f"Bearer {self.token}"
        if scope["type"] == "websocket":
            await self.socket(receive, send, allowed)
        elif scope["type"] == "http":
            await self.http(scope, receive, send, allowed)

    async def http(self, scope, receive, send, allowed):
        data = b""
        while True:
            part = await receive()
            data += part.get("body", b"")
            if not part.get("more_body"):
                break
        body = json.loads(data) if data else None
        if scope["path"] in self.pages:
            status, headers, answer = self.pages[scope["path"]]
            return await self.reply(send, status, answer, headers)
        if not allowed:
            return await self.reply(send, 403, compact({"kind": "AccessDenied", "message": "no token"}))
        query = parse_qs(scope["query_string"].decode())
        try:
            op, answer = self.page(scope["method"], scope["path"], query, body)
            status = 200
        except Refusal as refusal:
            op, status, answer = "refused", refusal.status, refusal.row
        self.heard.append(("http", op, body))
        fault = self.fault(op, body)
        if fault == "drop":  # a promise of more than what comes
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"99")]})
            return None
        if fault == "hang":
            await receive()  # until the client has gone
            return None
        if isinstance(fault, float):
            await asyncio.sleep(fault)
        return await self.reply(send, status, fault if isinstance(fault, bytes) else compact(answer))

    async def reply(self, send, status, body, headers=()):
        kind = [(b"content-type", b"application/json"), *headers]
        await send({"type": "http.response.start", "status": status, "headers": kind})
        if isinstance(body, bytes):
            body = [body]
        for part in body:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def socket(self, receive, send, allowed):
        await receive()
        if self.denial or not allowed:
            status, headers, answer = self.denial or (403, (), b"no")
            await send({"type": "websocket.http.response.start", "status": status, "headers": list(headers)})
            await send({"type": "websocket.http.response.body", "body": answer})
            return
        await send({"type": "websocket.accept"})
        while True:
            event = await receive()
            if event["type"] == "websocket.disconnect":
                return
            message = json.loads(event.get("text") or event["bytes"])
            try:
                answer = {
                    "ok": {"create": self.create, "step": self.step, "steps": self.steps, "close": self.close}[
                        message["op"]
                    ](message)
                }
            except Refusal as refusal:
                answer = {"error": refusal.row}
            self.heard.append(("ws", message["op"], message))
            fault = self.fault(message["op"], message)
            if fault == "drop":
                await send({"type": "websocket.close", "code": 1011})
                return
            text = fault if isinstance(fault, bytes) else compact({"request_id": message["request_id"], **answer})
            event = {"type": "websocket.send", "bytes" if isinstance(fault, bytes) else "text": text}
            if "text" in event:
                event["text"] = text.decode()
            if isinstance(fault, float):
                task = asyncio.create_task(self.send_later(send, event, fault))
                self.later.add(task)
                task.add_done_callback(self.later.discard)
            elif fault != "hang":
                for _ in range(2 if fault == "twice" else 1):
                    await send(event)

    async def send_later(self, send, event, seconds):
        await asyncio.sleep(seconds)
        await send(event)

    def ops(self, *names, transport=None):
        """How often these ops were heard."""
        return sum(op in names and transport in (None, via) for via, op, _ in self.heard)


class Stage:
    """An app that plays whatever app is put on it, so that many tests share one server."""

    app = None

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


@contextlib.contextmanager
def serving(app, lifespan="off"):
    """The address of an ASGI app on a real server in a thread; stopped at the end."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_level="critical",
        lifespan=lifespan,
        timeout_graceful_shutdown=1,
        ws="websockets-sansio",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


class Proxy:
    """Forwards connections to a server and records what passes, as (direction, bytes).

    pace: seconds that every piece of an answer is held up; silent: nothing is forwarded any more, but nothing closed.
    """

    def __init__(self, target):
        self._host, self._port = "127.0.0.1", int(target.rpartition(":")[2])
        self.seen, self.pace, self.silent, self.connections = [], 0.0, False, 0
        self._pairs = set()
        self._loop = asyncio.new_event_loop()
        self._tasks = set()

    def __enter__(self):
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        ).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_):
        self.refuse()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self):
        """Break every connection; new ones are welcome."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    def refuse(self):
        """Break every connection and take no new ones."""
        self._loop.call_soon_threadsafe(self._server.close)
        self.cut()

    async def _cut(self):
        for writer in list(self._pairs):
            writer.transport.abort()

    async def _end(self):
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader, writer):
        self.connections += 1
        try:
            there, back = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._pairs |= {writer, back}
        ways = (self._carry("out", reader, back), self._carry("in", there, writer))
        tasks = [asyncio.create_task(way) for way in ways]
        self._tasks |= set(tasks)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (writer, back):
                one.transport.abort()
                self._pairs.discard(one)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks -= set(tasks)

    async def _carry(self, way, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.seen.append((way, data))
                if self.silent:
                    continue
                if way == "in" and self.pace:
                    await asyncio.sleep(self.pace)
                writer.write(data)
                await writer.drain()
