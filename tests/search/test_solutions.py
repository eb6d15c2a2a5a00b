"""rStar over a model behind an endpoint that answers each kind of prompt with a text of that kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evolvent.engine.asks import Sampling
from evolvent.engine.driver import MultiModelEngine, run_jobs
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.local import LocalEngine
from evolvent.engine.remote import RemoteEngine
from evolvent.search.records import Budget, ExpandRequest, Request
from evolvent.search.rstar import RStarTreeConfig, mutual_consistency, rstar
from evolvent.search.rstar_prompts import Solution, Step, build_prompt, read_answer
from evolvent.search.solutions import Completer, SolutionState, begin_solution, search_solutions
from evolvent.search.writing import Writing
from tests.engine.models import llama
from tests.serve.small_policy import scripted

END = 1
WRITING = Writing(lambda ids: bytes(ids).decode(), frozenset([END]), 4000, 60, span_tokens=40)
REPLIES = {"A1": " one and two\n", "A3": " what is 1 + 1?\nAnswer: 2\n\n", "A4": " two\n", "A5": "add 1 to 2\n"}


def encode(text: str) -> list[int]:
    return list(text.encode())


def answer(number, path, body):
    """Replies as a model of bytes would: the third that asks for the rest comes to another answer, A5 is silent."""
    asked = bytes(body["prompt"]).decode()
    kind = next(kind for kind in ("A1", "A2", "A3", "A4", "A5") if prompt_of(kind) in asked)
    seed = body["seed"]
    said = REPLIES.get(kind, f" so it is. The answer is {4 if seed % 3 == 0 else 3}.")
    if kind == "A5" and seed % 2:
        said = " \n"
    ids = [*encode(said), *([END] if kind == "A2" else [])]
    choice = {
        "index": 0,
        "text": said,
        "finish_reason": "stop",
        "token_ids": ids,
        "prompt_token_ids": body["prompt"],
        "logprobs": {"token_logprobs": [-0.5] * len(ids)},
    }
    return (
        200,
        {},
        {
            "model": "m",
            "system_fingerprint": "fp",
            "choices": [choice],
            "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)},
        },
    )


def prompt_of(kind: str) -> str:
    """The sentence that asks for a kind."""
    steps = (Step("A3", "1", "1?"),) if kind == "A4" else ()
    return next(
        part for part in build_prompt(Solution("?", steps), kind).split("\n\n") if part.endswith((".", "answer."))
    )


@pytest.fixture(scope="module")
def engine():
    with scripted(answer) as (url, _), Endpoint(url, "m", timeout_s=20) as endpoint:
        remote = RemoteEngine(endpoint, context=4000, vocabulary=256)
        yield remote
        remote.close()


def run(search, engine, writing=WRITING, **more):
    (done,) = run_jobs([search_solutions(search, encode=encode, writing=writing, **more)], engine, slots=1)
    if done.error is not None:
        raise done.error
    return done.value


def test_all_kinds_make_solutions_and_the_answer_of_most_wins(engine):
    written = engine.usage.generated
    search = rstar(
        begin_solution("1 + 2", seed=5),
        Budget(),
        np.random.default_rng(0),
        rollouts=8,
        answer=lambda state: read_answer(state.solution),
        reasoning=RStarTreeConfig(last_votes=8),
    )
    result = run(search, engine)
    tree = result.tree
    assert {"A1", "A2", "A3", "A4"} <= set(tree.kinds)
    assert read_answer(tree.states[result.best_node].solution) == "3"
    assert result.spent.generated == engine.usage.generated - written > 0
    for node in range(1, len(tree)):
        state: SolutionState = tree.states[node]
        assert state.above is tree.states[int(tree.parent[node])] and state.generation is not None
        asked = build_prompt(state.above.solution, tree.kinds[node])
        ids, sampled = state.generation.ids, state.generation.sampled
        assert ids[~sampled].tolist() == encode(asked)
        assert tree.terminal[node] == (tree.kinds[node] == "A2")
    first = tree.states[next(node for node in range(len(tree)) if tree.kinds[node] == "A3")]
    assert first.solution.steps[-1] == Step("A3", "2", "what is 1 + 1?")


def once(*wishes, evaluate=()):
    found = yield Request(wishes, evaluate)
    return found


def test_equal_solutions_are_one_and_empty_replies_none(engine):
    root = begin_solution("1 + 2", seed=5)
    thoughts, rests, again = run(
        once(
            ExpandRequest(root, 5, kind="A1"),
            ExpandRequest(root, 9, to_end=True, kind="A2"),
            ExpandRequest(root, 8, kind="A5"),
        ),
        engine,
    ).children
    assert [(child.count, child.action) for child in thoughts] == [(5, "one and two")]
    assert thoughts[0].generated == 5 * len(REPLIES["A1"]) and not thoughts[0].terminal
    assert {read_answer(child.state.solution): child.count for child in rests}.keys() == {"3", "4"}
    assert sum(child.count for child in rests) == 9 and all(child.terminal for child in rests)
    sound = [child for child in again if not child.problem]
    silent = [child for child in again if child.problem]
    assert sound[0].state.solution == Solution("add 1 to 2")
    assert sum(child.count for child in sound) + len(silent) == 8 and silent


def limited(root):
    found = yield Request([ExpandRequest(root, 2, kind="A1")], [root], Budget(generated=79))
    return found


def test_what_does_not_fit_is_not_asked(engine):
    before = engine.usage.generated
    found = run(limited(begin_solution("1 + 2")), engine)
    assert found.children == [None] and found.short == "generated" and np.isnan(found.values[0])
    assert engine.usage.generated == before


def test_replies_of_a_local_model_cost_what_its_engine_counts():
    policy = replace(llama(vocab_size=256, max_position_embeddings=900), context=900)
    engine = LocalEngine(policy, slots=8)
    writing = Writing(
        lambda ids: bytes(ids).decode("latin-1"), frozenset([END]), 900, 8, span_tokens=5, sampling=Sampling(top_k=20)
    )
    root = begin_solution("1 + 2", seed=2)
    result = run(
        once(ExpandRequest(root, 3, kind="A1"), ExpandRequest(root, 4, to_end=True, kind="A2")), engine, writing
    )
    assert result.spent.computed == engine.usage.computed and result.spent.generated == engine.usage.generated
    assert engine.usage.shared > 0, "prompts that begin alike share their beginning"


def test_another_model_completes_masked_solutions_in_its_own_tokens(engine):
    """It reads letters turned by 100, and fails at every second sample; the others count, and the search goes on."""

    def judge(number, path, body):
        if body["seed"] % 2:
            return 400, {}, {"error": {"message": "no"}}
        asked = bytes((one - 100) % 256 for one in body["prompt"])
        said = [(byte + 100) % 256 for byte in b" So the answer is 7."]
        assert asked.decode() == build_prompt(Solution("1 + 2"), "mutual")
        choice = {
            "index": 0,
            "text": "?",
            "finish_reason": "stop",
            "token_ids": said,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": [-0.1] * len(said)},
        }
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(said)}
        return 200, {}, {"model": "j", "system_fingerprint": "fp", "choices": [choice], "usage": usage}

    def decode(ids):
        return bytes((one - 100) % 256 for one in ids).decode()

    second = Completer(
        lambda text: [(byte + 100) % 256 for byte in text.encode()], replace(WRITING, decode=decode), "j"
    )
    with scripted(judge) as (url, _), Endpoint(url, "j", timeout_s=20) as endpoint:
        remote = RemoteEngine(endpoint, context=4000, vocabulary=256)
        wishes = once(
            ExpandRequest(begin_solution("1 + 2", seed=5), 6, to_end=True, kind="mutual"),
            ExpandRequest(begin_solution("1 + 2", seed=5), 2, kind="A1"),
        )
        found = run(wishes, MultiModelEngine({"policy": engine, "j": remote}), judge=second)
        remote.close()
    (told, *failed), (own,) = found.children
    assert read_answer(told.state.solution) == "7" and told.count + len(failed) == 6
    assert failed and all("no" in child.problem for child in failed) and own.action == "one and two"


def test_nothing_to_add_is_an_end_without_an_answer_and_no_room_is_a_problem():
    def silent(number, path, body):
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "stop",
            "token_ids": [END],
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": [-0.1]},
        }
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
        return 200, {}, {"model": "m", "system_fingerprint": "fp", "choices": [choice], "usage": usage}

    root = begin_solution("1 + 2", seed=5)
    long = SolutionState(Solution("1 + 2", (Step("A1", "x" * 4000),)), 3, None, root)
    with scripted(silent) as (url, asked), Endpoint(url, "m", timeout_s=20) as endpoint:
        remote = RemoteEngine(endpoint, context=4000, vocabulary=256)
        (rest,), (thought,), (full,) = run(
            once(
                ExpandRequest(root, 3, to_end=True, kind="A2"),
                ExpandRequest(root, 1, kind="A1"),
                ExpandRequest(long, 2, kind="A1"),
            ),
            remote,
        ).children
        remote.close()
    assert rest.terminal and rest.count == 3 and read_answer(rest.state.solution) is None and not rest.problem
    assert "makes no step" in thought.problem and "no room" in full.problem
    assert len([path for path, _, _ in asked.asked if "completions" in path]) == 4


def test_a_judge_that_cannot_hold_a_problem_trusts_nothing_and_the_search_goes_on(engine):
    """The policy's own prompt of the problem has room, that for the judge has none."""
    judge = replace(WRITING, context=40)
    search = rstar(
        begin_solution("1 + 2", seed=2),
        Budget(),
        np.random.default_rng(1),
        answer=lambda state: read_answer(state.solution),
        rollouts=2,
        reasoning=RStarTreeConfig({"A2": 4}, depth=1, last_votes=4),
        agree=mutual_consistency(lambda state: read_answer(state.solution)),
    )
    result = run(search, engine, judge=Completer(encode, judge))
    assert result.notes["agreed"] == [] and result.best_node in result.finished and result.ended_by == "done"
