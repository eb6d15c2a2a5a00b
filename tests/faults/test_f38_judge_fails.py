"""Fault 38: a judge answers 500, garbage or nothing: retries to the deadline, no score, the judging goes on.

What was not judged is None and in no mean. When more than a tenth is lost the judging ends and says why.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
from small_store import episode

from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError, JudgeUnavailable, VerdictUnreadable
from evolvent.reward.judging import EndpointJudge, FailureBudget, judge_trajectories, parse_verdict
from evolvent.rollout.evaluate import summarize_outcomes
from evolvent.trajectory import Step
from tests.serve.small_policy import completion, scripted

PASS, FAIL = '{"verdict": "pass"}', '{"verdict": "fail"}'
GARBAGE = [
    '{"verdict": "fail", "verdict": "pass"}',
    '[["verdict", "pass"]]',
    '{"verdict": {"verdict": "pass"}}',
    "",
    "pass",
    "I would say pass",
    f"{PASS} {FAIL}",
    f"```json\n{PASS}\n```",
    '{"verdict": "maybe"}',
    "[]",
    "{}",
    '{"verdict": true}',
    '{"verdict": "pass", "verdict2": "fail"}',
    "[" * 5000,
    '{"verdict": NaN}',
]


def answers(count: int):
    """Episodes whose last action is their number; even ones are right."""
    return [replace(episode(n), steps=(Step("what is asked", str(n), 0.0),)) for n in range(count)]


def number_of(body) -> int:
    return int(json.loads(body["messages"][-1]["content"])["answer"])


def verdict(body) -> tuple:
    return 200, {}, completion(PASS if number_of(body) % 2 == 0 else FAIL)


def scores(answer, count: int = 40, *, timeout_s: float = 20.0, **more) -> dict[str, bool | None]:
    with scripted(answer) as (url, _), Endpoint(url, "judge", timeout_s=timeout_s) as endpoint:
        found = list(judge_trajectories(answers(count), EndpointJudge(endpoint, "it is even"), **more))
    assert all(one.score.success is not None or (one.score.raw, one.score.unit) == (None, None) for one in found)
    return {one.id: one.score.success for one in found}


def test_a_judge_that_passes_and_fails_is_believed():
    assert scores(lambda number, path, body: verdict(body)) == {f"e{n}": n % 2 == 0 for n in range(40)}


def test_every_request_fails_at_first_and_is_sent_again():
    tries: dict[int, int] = {}
    lock = threading.Lock()

    def answer(number, path, body):
        with lock:
            tries[number_of(body)] = count = tries.get(number_of(body), 0) + 1
        kinds = [(500, {}, {"error": "down"}), None, (503, {"retry-after": "0"}, b"")]
        return verdict(body) if count > 1 else kinds[number_of(body) % 3]

    assert scores(answer, 12) == {f"e{n}": n % 2 == 0 for n in range(12)}
    assert set(tries.values()) == {2}


@pytest.mark.parametrize("text", GARBAGE)
def test_garbage_is_no_verdict(text):
    with pytest.raises(VerdictUnreadable):
        parse_verdict(text)


@pytest.mark.parametrize("wrong", ["garbage", "refused", "silence"])
def test_a_few_lost_ones_have_no_score_and_the_others_theirs(wrong):
    """3 of 40 are lost: one that answers garbage, one that is refused, one that never answers."""
    release = threading.Event()

    def answer(number, path, body):
        if number_of(body) in (3, 4, 11):
            if wrong == "silence":
                release.wait(30)
            return {"garbage": (200, {}, completion("who knows")), "refused": (400, {}, {"error": "no"})}.get(wrong)
        return verdict(body)

    try:
        found = scores(answer, timeout_s=3.0 if wrong == "silence" else 20.0, failures=FailureBudget(min_count=40))
    finally:
        release.set()
    assert found == {f"e{n}": None if n in (3, 4, 11) else n % 2 == 0 for n in range(40)}


def test_what_was_not_judged_is_in_no_mean():
    def answer(number, path, body):
        return (200, {}, completion("hm")) if number_of(body) == 7 else verdict(body)

    with scripted(answer) as (url, _), Endpoint(url, "judge") as endpoint:
        found = list(judge_trajectories(answers(20), EndpointJudge(endpoint, "it is even")))
    (lost,) = [one for one in found if one.score.success is None]
    assert lost.id == "e7" and lost.meta["judge"].startswith("VerdictUnreadable: the reply has no verdict: got hm")
    (row,) = summarize_outcomes(found)
    assert row.mean is None and row.errors == 1, "a panel with a hole in it has no mean"


def test_more_than_a_tenth_ends_it():
    def down(number, path, body):
        return (401, {}, {"error": "no such key"}) if number_of(body) % 4 == 1 else verdict(body)

    with pytest.raises(JudgeUnavailable, match=r"too many verdicts are missing: got \d+ of \d+.*at most 10%"):
        scores(down)
    assert scores(down, failures=FailureBudget(max_ratio=0.6))["e0"] is True


def test_the_budget_is_exact():
    budget, error = FailureBudget(max_ratio=0.1, min_count=10), VerdictUnreadable("x", value="y")
    for _ in range(9):
        budget.record(error)  # too few to tell
    with pytest.raises(JudgeUnavailable):
        budget.record(None)
    even = FailureBudget(max_ratio=0.5, min_count=1)
    for wrong in (None, error) * 20:
        even.record(wrong)  # exactly one half, never more
    with pytest.raises(JudgeUnavailable, match="21 of 41"):
        even.record(error)


def test_a_judge_without_a_question():
    with scripted(lambda *_: None) as (url, _), Endpoint(url, "m") as endpoint, pytest.raises(ConfigError) as caught:
        EndpointJudge(endpoint, " ", max_tokens=0)
    assert [problem.where for problem in caught.value.problems] == ["criterion", "max_tokens"]
