"""Fault 67: one client asks a policy server for hundreds of replies: another's single one waits for its share only.

A reply that nobody waits for is not computed further.
"""

import asyncio
import contextlib

import httpx2
import pytest

import evolvent as ev
from evolvent.engine.asks import SampleAsk
from evolvent.errors import AtCapacity
from evolvent.serve.openai.generator import CLIENT, Generator
from tests.bench.small_policies import small_policy
from tests.serve.small_policy import NAME, policy_server


@pytest.fixture(scope="module")
def policy():
    return small_policy()


def ask(policy, max_tokens, seeds=(0,)):
    return SampleAsk(None, [int(token) for token in policy.tokenizer.encode("go")][:4] or [1], max_tokens, seeds=seeds)


async def asked_as(generator, client, request):
    CLIENT.set(client)
    return await generator.generate(request)


async def begun(generator):
    while not generator.open or not generator.queued:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("engine_class", [ev.LocalEngine, None])
def test_a_single_request_overtakes_the_hundreds_of_another_client(policy, engine_class):
    from evolvent.engine.recompute import RecomputeEngine

    async def run():
        engine = (engine_class or RecomputeEngine)(policy, slots=8)
        async with Generator(policy, engine, slots=8) as generator:
            greedy = [
                asyncio.create_task(asked_as(generator, "greedy", ask(policy, 24, (number,))))
                for number in range(200 if engine_class else 60)
            ]
            await begun(generator)
            await asyncio.create_task(asked_as(generator, "modest", ask(policy, 4)))
            num_done = sum(task.done() for task in greedy)
            assert generator.num_waiting > 0
            await asyncio.gather(*greedy)
        return num_done

    assert asyncio.run(run()) <= 32, "at most a few rounds of the slots, not 200 replies"


def test_samples_are_the_same_however_a_request_is_divided(policy):
    async def run(slots):
        async with Generator(policy, ev.LocalEngine(policy, slots=16), slots=slots) as generator:
            return [sample.ids.tolist() for sample in await generator.generate(ask(policy, 12, tuple(range(20))))]

    assert asyncio.run(run(4)) == asyncio.run(run(64))


def test_a_client_takes_no_more_of_the_queue_than_is_free(policy):
    async def run():
        async with Generator(policy, ev.LocalEngine(policy, slots=1), max_open=16, slots=1) as generator:
            tasks = [asyncio.create_task(asked_as(generator, "greedy", ask(policy, 24))) for _ in range(30)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            other = asyncio.create_task(asked_as(generator, "modest", ask(policy, 2)))
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, AtCapacity)]
            assert len(refused) == generator.num_refused and 10 <= len(refused) < 25
            assert len((await other)[0].ids) > 0

    asyncio.run(run())


def test_a_cancelled_request_is_computed_no_further(policy):
    async def run():
        engine = ev.LocalEngine(policy, slots=4)
        async with Generator(policy, engine, slots=4) as generator:
            tasks = [asyncio.create_task(asked_as(generator, "a", ask(policy, 30, (seed,)))) for seed in range(40)]
            await begun(generator)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            before = engine.usage.forwards
            while generator.queued or generator.num_waiting:
                await asyncio.sleep(0.001)
            assert engine.usage.forwards - before <= 1, "the forward that ran, and no other"
            await asyncio.sleep(0.05)
            assert engine.usage.forwards - before <= 1 and not generator.open

    asyncio.run(run())


@pytest.fixture(scope="module")
def server(policy):
    with policy_server(policy) as running:
        yield running


CHAT = {"model": NAME, "messages": [{"role": "user", "content": "go"}]}


def test_the_metrics_tell_the_queue_and_the_refusals(server):
    metrics = httpx2.get(server.url.removesuffix("/v1") + "/metrics", trust_env=False, timeout=60).text
    for name in ("requests_open", "requests_waiting", "requests_refused_total", "connections_open"):
        assert f"\nevolvent_{name} " in metrics


def test_a_dropped_stream_stops(server):
    body = CHAT | {"stream": True, "n": 16, "seed": 1}
    with httpx2.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        with contextlib.suppress(httpx2.HTTPError), client.stream("POST", "/chat/completions", json=body) as answer:
            next(answer.iter_lines())
    from tests.serve.served import until

    until(lambda: not (server.generator.open or server.generator.queued or server.generator.num_waiting), 30)
