"""The sides of `benchmarks.policy_server`: the checkpoint that all of them load, the servers, the clients, a bare loop.

    python -m benchmarks.policy_server_sides clients        # answers jobs, a line of JSON each, with a line of JSON
    python -m benchmarks.policy_server_sides loop FOLDER    # the same jobs on our engine, without a server

A job names texts for every client. A client has one request open at a time, so as many texts are written at once as
there are clients. Nothing here keeps a library between the clock and the socket: the clients write HTTP/1.1 themselves
and take the events out of its chunks as they come.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

WORDS = 4096
SHAPE = {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 512,
}
START, END, NONE = "<|im_start|>", "<|im_end|>", "<|none|>"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TIMEOUT_S = 300.0  # of one request


def make_checkpoint(folder: Path, *, seed: int) -> int:
    """Write a Llama with random weights and a tokenizer of words; returns how many weights it has.

    The rows of the output layer that belong to control tokens are zero, so that greedy decoding never ends a reply:
    among thousands of random logits the largest is positive. All sides then write as many tokens as they are asked for.
    """
    import torch
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = [NONE, "system", "user", "assistant", *(f"w{number}" for number in range(WORDS - 6))]
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=NONE))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens([AddedToken(word, special=True) for word in (START, END)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, unk_token=NONE, pad_token=NONE)
    tokenizer.chat_template = CHATML
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **SHAPE,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[tokenizer.all_special_ids] = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def texts(seed: str, clients: int, each: int, length: int) -> list[list[str]]:
    """What every client says, request by request: words that no other request begins with, so no prefix is shared."""
    rng = Random(seed)
    return [
        [" ".join(f"w{rng.randrange(WORDS - 6)}" for _ in range(length)) for _ in range(each)] for _ in range(clients)
    ]


async def ask(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One streamed reply: seconds to its first text, its text, and the tokens that the server counted."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    began, first = time.perf_counter(), None
    said: list[str] = []
    usage: dict[str, int] = {}
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        if " 200 " not in answer.split("\r\n", 1)[0] or "transfer-encoding: chunked" not in answer:
            raise ConnectionError(f"{answer.splitlines()[0]}: {(await reader.read(500)).decode('utf-8', 'replace')}")
        while size := int(await reader.readline(), 16):
            for event in (await reader.readexactly(size + 2)).split(b"\n\n"):
                if not event.startswith(b"data: {"):
                    continue
                row = json.loads(event[6:])
                if "error" in row:
                    raise ConnectionError(str(row["error"]))
                new = "".join((choice.get("delta") or {}).get("content") or "" for choice in row["choices"])
                first = time.perf_counter() - began if new and first is None else first
                said.append(new)
                usage = row.get("usage") or usage
    finally:
        writer.close()
    return {
        "first_s": first,
        "text": "".join(said),
        "prompt": usage.get("prompt_tokens"),
        "written": usage.get("completion_tokens"),
    }


async def clients(job: dict[str, Any]) -> dict[str, Any]:
    """Every client's requests, one after the other, all clients at once; how long all of it took."""

    async def one(said: Sequence[str]) -> list[dict[str, Any]]:
        got = []
        for text in said:
            body = {"messages": [{"role": "user", "content": text}], "stream": True, **job["body"]}
            got.append(await asyncio.wait_for(ask(job["url"], "/v1/chat/completions", body), TIMEOUT_S))
        return got

    began = time.perf_counter()
    lines = await asyncio.gather(*(one(said) for said in job["texts"]))
    return {"wall_s": time.perf_counter() - began, "replies": [reply for line in lines for reply in line]}


def bare_loop(folder: Path, slots: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Our engine over the checkpoint, asked directly: what a server could give at most."""
    from evolvent.engine.asks import GREEDY, SampleAsk
    from evolvent.engine.fitting import engine_for
    from evolvent.models.policy import load_policy

    policy = load_policy(folder)
    engine = engine_for(policy, slots=slots)

    def run(job: dict[str, Any]) -> dict[str, Any]:
        waiting = [list(said) for said in job["texts"]]
        open_: dict[Any, tuple[int, int]] = {}
        replies: list[dict[str, Any]] = []

        def submit(client: int) -> None:
            prompt = policy.dialect.open("", waiting[client].pop(0))
            sample = SampleAsk(None, prompt, job["body"]["max_tokens"], policy.dialect.stop_ids, sampling=GREEDY)
            open_[engine.submit(sample)] = (client, len(prompt))

        began = time.perf_counter()
        for client in range(len(waiting)):
            submit(client)
        while open_:
            for done in engine.poll():
                client, length = open_.pop(done.ticket)
                if done.error is not None:
                    raise done.error
                ids = done.answer[0].ids
                text = policy.dialect.text(ids)
                replies.append({"client": client, "first_s": None, "text": text, "prompt": length, "written": len(ids)})
                if waiting[client]:
                    submit(client)
        wall = time.perf_counter() - began
        return {"wall_s": wall, "replies": sorted(replies, key=lambda reply: reply["client"])}  # stable: as asked

    return run


def main(words: Sequence[str]) -> None:
    """Answer jobs until there are no more."""
    if words[0] == "loop":
        run = bare_loop(Path(words[1]), slots=int(words[2]))
    else:
        run = lambda job: asyncio.run(clients(job))  # noqa: E731
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
