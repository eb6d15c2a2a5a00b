"""Comments as a method: pairs as they are asked for, filters, what is learned in each arm, going on after a stop."""

import json
from collections import Counter

import numpy as np
import pytest

from evolvent.agents.base import Decision
from evolvent.curate.commenting import Commenting, Source, count_outcomes, find_faults, make_start, read_episode
from evolvent.curate.comments import Note, code_tokens
from evolvent.curate.notes import SKIP, CommentLimits, extract_comments, format_request
from evolvent.errors import ConfigError, EngineError, NothingToLearn, SampleInvalid
from evolvent.learn.learner import TrainConfig
from evolvent.learn.rows import ReadingConfig, read_rows
from evolvent.methods.comments import (
    COMMENTED,
    COMMENTED_FILTERED,
    FILTERED_RAW,
    RAW,
    CommentsConfig,
    ask_for_comments,
    build_training_pairs,
    comment_sources,
    comments,
)
from evolvent.models.dialects import _PIECES
from evolvent.models.policy import tiny_policy
from evolvent.rollout.episode import collect
from evolvent.run import Run
from evolvent.scale.local_backend import LocalBackend
from evolvent.trajectory import ErrorRecord, Generation, Step, Trajectory

THINGS = ("rows", "cells", "names", "files")
DEEDS = {"count": "counts the", "drop": "drops the"}


def code(deed, thing, *, noted=False):
    note = f"    # {DEEDS[deed]} {thing}\n" if noted else ""
    return f"def {deed}({thing}):\n{note}    return {deed}_all({thing})\n"


SHOWN = [Source(f"{deed}/{thing}", code(deed, thing, noted=True), "python") for deed in DEEDS for thing in THINGS]
BARE = [Source(f"bare/{one.id}", code(*one.id.split("/")), "python") for one in SHOWN]
LOW = Source("low", "x = 1\n" * 12, "python")


class Says:
    """An agent that answers by the code that it is shown."""

    def __init__(self, answers):
        self.answers, self.asked, self.policy = answers, [], None

    def begin(self, world, task, *, seed):
        return self

    def act(self, observation, info):
        self.asked.append(observation)
        found = [said for part, said in self.answers.items() if part in observation]
        return Decision(found[0], ends="horizon" if found[0] is None else None)
        yield  # an agent is a generator


class Scripted(LocalBackend):
    """Verbs whose generator is a script; what is learned is noted down, and may be interrupted."""

    def _make_agent(self, policy, sampling, **more):
        self.predicate_adjective.policy = policy
        return self.predicate_adjective

    def fit(self, policy, data, stage, **more):
        self.learned.append([part.trajectory for part in data])
        self.texts = [policy.dialect.text(part.ids.tolist()) for part in data]
        if len(self.learned) == self.stops_at:
            raise KeyboardInterrupt
        return super().fit(policy, data, stage, **more)


def run_of(folder, answers=None, *, stops_at=0):
    train = TrainConfig(lr=5e-3, weight_decay=0.0, warmup_steps=2, batch_tokens=2048, epochs=1)
    kind = LocalBackend if answers is None else Scripted
    verbs = kind({"commenting": Commenting()}, train, slots=16, max_tokens=12)
    if answers is not None:
        verbs.predicate_adjective, verbs.learned, verbs.stops_at = Says(answers), [], stops_at
    return Run(folder, verbs, settings=verbs.settings()), verbs


@pytest.fixture(scope="module")
def policy():
    texts = [format_request(one.text, "python") for one in (*SHOWN, *BARE, LOW)]
    words = {word for text in texts for word in [*_PIECES.findall(text), *text.split()]} | {SKIP, "#", "_"}
    pieces = {piece for word in words for piece in _PIECES.findall(word.replace("_", " _ "))}
    return tiny_policy(sorted(words | pieces), context=256, seed=1)


def judged(source, answer):
    (played,) = collect({"commenting": Commenting()}, [make_start(source)], Says({"": answer}), engine=None)
    return read_episode(source, played)


def test_what_becomes_of_an_answer():
    one = BARE[0]
    found = judged(one, "2: counts what is there\n9: too far\nno note")
    assert (found.outcome, found.notes, found.left_out) == ("commented", (Note(2, "counts what is there"),), 2)
    assert found.text == "def count(rows):\n    # counts what is there\n    return count_all(rows)\n"
    assert code_tokens(found.text, "python") == code_tokens(one.text, "python")
    broken = Source("broken", "def (:\n", "python")
    outcomes = [judged(*pair) for pair in ((one, SKIP), (one, "2: noqa: E501"), (broken, "1: a"), (one, None))]
    assert [each.outcome for each in outcomes] == ["skipped", "unchanged", "unparsable", "too_long"]
    assert [each.text for each in outcomes] == [one.text, one.text, broken.text, one.text]
    counts = count_outcomes([found, *outcomes])
    assert counts["commented"] == counts["skipped"] == counts["notes"] == 1 and counts["left_out"] == 4
    assert sum(counts.values()) == 5 + 1 + 4


def test_an_answer_that_was_cut_off_loses_its_last_line():
    one, said = BARE[0], "2: counts the rows\n1: begins w"

    def found(stop=None, completion=8, longest=None):
        none = np.zeros(1, np.int32)
        own = () if stop is None else (Generation(none, none > 0, np.zeros(1, np.float32), None, (), True, 0, stop),)
        step = Step("", said, 0.0, None, own, None, {} if own else {"tokens": {"completion": completion}})
        return len(read_episode(one, Trajectory("t", make_start(one).task, (step,)), max_tokens=longest).notes)

    assert (found("stop"), found("length"), found(None), found(longest=8), found(longest=9)) == (2, 1, 2, 1, 2)


def test_no_answer_is_told():
    error = ErrorRecord("EndpointError", "it is gone", 0, False)
    played = Trajectory("t", make_start(BARE[0]).task, (), ended_by="error", error=error)
    one = read_episode(BARE[0], played)
    assert (one.outcome, one.text, one.failure) == ("failed", BARE[0].text, "EndpointError: it is gone")


def test_the_filters_say_why():
    one = BARE[0]
    assert find_faults(judged(one, SKIP), CommentLimits()) == ("skipped",)
    assert find_faults(judged(LOW, "1: begins"), CommentLimits()) == ("repeated lines",)
    strange, near = judged(one, "2: once upon a time"), judged(one, "2: counts the rows")
    assert (
        find_faults(strange, CommentLimits(aligned=0.5)) == ("unaligned",)
        and find_faults(near, CommentLimits(aligned=0.5)) == ()
    )
    share = len("# counts the rows") / len(near.text)
    assert find_faults(near, CommentLimits(density=(share, 1.0))) == () and find_faults(
        near, CommentLimits(density=(share + 0.01, 1))
    )


def test_what_is_no_source():
    with pytest.raises(SampleInvalid, match="lone surrogate"):
        Source("a", "x = '\ud800'", "python")
    with pytest.raises(ConfigError, match="pyhton"):
        Source("a", "x", "pyhton")


def test_a_pair_is_asked_as_the_generator_will_be(policy):
    config = CommentsConfig(skips=0.2)
    found = build_training_pairs([*SHOWN, BARE[0], LOW, Source("b", "def (:\n", "python")], config, policy, seed=0)
    assert [part.trajectory for part in found] == [*(one.id for one in SHOWN), "low"], "bare code teaches nothing"
    part, pair = found[0], extract_comments(SHOWN[0].text, "python")
    assert pair.source == BARE[0].text
    assert part.ids[~part.written].tolist() == policy.dialect.open("", format_request(BARE[0].text, "python"))
    said = [policy.dialect.text(one.ids[one.written].tolist()) for one in (found[0], found[-1])]
    assert said == ["2 : counts the rows", SKIP]
    lows = [Source(f"low{n}", LOW.text, "python") for n in range(40)]
    some = Counter(
        part.trajectory[:3] == "low" for part in build_training_pairs([*SHOWN, *lows], config, policy, seed=0)
    )
    assert some == {False: 8, True: 2}, "a fifth of all"
    names = [
        {part.trajectory for part in build_training_pairs([*SHOWN, *order], config, policy, seed=0)}
        for order in (lows, lows[::-1])
    ]
    assert (
        names[0]
        == names[1]
        != {part.trajectory for part in build_training_pairs([*SHOWN, *lows], config, policy, seed=1)}
    )
    assert not any(
        part.trajectory == "low"
        for part in build_training_pairs([*SHOWN, LOW], CommentsConfig(skips=0), policy, seed=0)
    )


ANSWERS = {"count(rows)": SKIP, "drop(": "2: drops the rows", "count(": "3: too far", "x = 1": "1: counts the cells"}


@pytest.mark.parametrize(("arm", "kept"), [(RAW, 9), (FILTERED_RAW, 8), (COMMENTED, 9), (COMMENTED_FILTERED, 7)])
def test_arms(policy, tmp_path, arm, kept):
    """The generator skips one source, the rules find another faulty; only commented arms are tuned and asked."""
    run, verbs = run_of(tmp_path, ANSWERS)
    with run:
        learned = comments(policy, [*BARE, LOW], config=CommentsConfig(**arm, tokens=200), run=run, examples=SHOWN)
    told = json.loads((tmp_path / "comments.json").read_text())[0]
    assert told["sources"] == 9 and told["kept"] == kept and not told["not_encoded"]
    assert verbs.learned[-1] and len(verbs.learned[-1]) == kept and learned.version > policy.version
    augment = bool(arm["augment"])
    assert (len(verbs.learned), len(verbs.predicate_adjective.asked)) == ((2, 9) if augment else (1, 0))
    notes = sum("# drops the rows" in text for text in verbs.texts)
    assert notes == (4 if augment else 0), "what is learned is the code with its notes"
    assert told["commented"] == (5 if augment else 0) and told["skipped"] == (1 if augment else 0)


def test_equal_code_is_asked_about_once(policy, tmp_path):
    twice = [*BARE[4:], Source("again", BARE[4].text, "python")]
    run, verbs = run_of(tmp_path, ANSWERS)
    with run:
        found = comment_sources(twice, policy, run=run)
        with pytest.raises(ConfigError, match="two sources have the same id"):
            comments(policy, [BARE[0]] * 2, config=CommentsConfig(), run=run)
        with pytest.raises(NothingToLearn, match="no pair"):
            comments(policy, BARE, config=CommentsConfig(), run=run)
    assert len(verbs.predicate_adjective.asked) == 4 and [one.source.id for one in found] == [one.id for one in twice]
    assert all(
        one.text == code("drop", thing).replace(":\n", ":\n    # drops the rows\n")
        for one, thing in zip(found, (*THINGS, THINGS[0]), strict=True)
    )


def test_a_stopped_run_goes_on(policy, tmp_path):
    """Stopped while it learns the commented code of round 2: what was answered and learned is not done again."""
    config = CommentsConfig(rounds=2, tokens=200, pair_tokens=200)
    with run_of(tmp_path / "whole", ANSWERS)[0] as run:
        whole = comments(policy, BARE, config=config, run=run, examples=SHOWN)
    run, verbs = run_of(tmp_path / "cut", ANSWERS, stops_at=4)
    with run, pytest.raises(KeyboardInterrupt):
        comments(policy, BARE, config=config, run=run, examples=SHOWN)
    assert len(verbs.predicate_adjective.asked) == 16, "the better model is asked again"
    run, verbs = run_of(tmp_path / "cut", ANSWERS)
    with run:
        again = comments(policy, BARE, config=config, run=run, examples=SHOWN)
        assert len(verbs.learned) == 1 and not verbs.predicate_adjective.asked
        origins = {verbs.origin(one) for one in (whole, again)}
    assert len(origins) == 1, "the same weights"
    told = [(tmp_path / name / "comments.json").read_bytes() for name in ("whole", "cut")]
    assert told[0] == told[1] and [row["round"] for row in json.loads(told[0])] == [1, 2]


def test_a_tuned_generator_writes_legal_notes(policy, tmp_path):
    """A model of 170,000 parameters, tuned on eight pairs, comments the code of these pairs."""
    run, _ = run_of(tmp_path)
    with run:
        before = comment_sources(BARE[:2], policy, run=run)
        config = CommentsConfig(pair_tokens=4000, tokens=200)
        comments(policy, BARE, config=config, run=run, examples=SHOWN)
    (told,) = json.loads((tmp_path / "comments.json").read_text())
    assert count_outcomes(before)["notes"] == 0 and told["commented"] >= 4 and told["notes"] >= 4


def test_another_generator_is_asked_once_and_only_for_what_it_did_not_answer(policy, tmp_path):
    """It fails on one of two sources at first; the second time it is asked for that one alone."""
    script, path = Says({"count": "2: counts all", "drop": None}), tmp_path / "answers.jsonl"

    def play(starts):
        for trajectory in collect({"commenting": Commenting()}, starts, script, engine=None):
            failed = "drop" in trajectory.task.spec["source"] and len(script.asked) < 3
            error = ErrorRecord("EndpointError", "it is gone", 0, False)
            yield Trajectory("t", trajectory.task, (), ended_by="error", error=error) if failed else trajectory

    sources = [one for one in BARE if "rows" in one.id]
    with pytest.raises(EngineError, match="did not answer 1 of 2 requests"):
        ask_for_comments(sources, play, path)
    script.answers["drop"] = "2: drops all"
    found = ask_for_comments(sources, play, path)
    assert [one.outcome for one in found] == ["commented", "commented"] and len(script.asked) == 3
    assert "# drops all" in found[1].text
    run, verbs = run_of(tmp_path / "run", {"": SKIP})
    with run:
        comments(policy, sources, config=CommentsConfig(filter=False), run=run, play=play)
        row = json.loads((run.folder / "comments.json").read_text())[0]
    assert row["commented"] == 2 and len(verbs.learned) == 1 and "counts" in verbs.texts[0], "it was not tuned"
    assert not verbs.predicate_adjective.asked


@pytest.mark.parametrize("equal", ["tokens", "code"])
def test_arms_have_as_many_tokens_or_as_much_code(policy, tmp_path, equal):
    """Half of the code is skipped and left out; what is left has comments. Counted by hand from the corpora."""
    answers = {"count": "2: counts all", "drop": SKIP}
    budgets = {}
    for arm in (RAW, COMMENTED_FILTERED):
        run, verbs = run_of(tmp_path / f"{equal}{arm['augment']}", answers)
        fit, budget = verbs.fit, []
        verbs.fit = lambda *args, budget=budget, fit=fit, **more: (
            budget.append(more.get("tokens")) or fit(*args, **more)
        )
        with run:
            config = CommentsConfig(teach=False, equal=equal, passes=2, **arm)
            comments(policy, BARE, config=config, run=run)
        budgets[arm["augment"]] = budget[-1]

    def count(sources, texts):
        written = (({"text": text}, source) for source, text in zip(sources, texts, strict=True))
        rows = ((source.id, row) for row, source in written)
        return sum(int((part.weight != 0).sum()) for part in read_rows(rows, policy, ReadingConfig(kind="text")))

    raw = 2 * count(BARE, [one.text for one in BARE])
    left = [one for one in BARE if "count" in one.id]
    commented = count(left, [one.text.replace("\n    return", "\n    # counts all\n    return") for one in left])
    assert budgets[False] == raw
    by_code = round(raw * commented / count(left, [one.text for one in left]))
    assert budgets[True] == (raw if equal == "tokens" else by_code) and by_code > raw
