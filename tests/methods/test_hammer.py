"""Hammer: what is learned of which sample, and that a model taught so reads descriptions."""

from collections import Counter

import pytest

from evolvent.bench.calls import CallAnswer, answer_samples, grade_answer, mask_panel, measure_robustness
from evolvent.curate.masking import MaskSpec
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError, NothingToLearn
from evolvent.grade.calls import CallGrade
from evolvent.learn.learner import TrainConfig
from evolvent.learn.taught import build_demonstration
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.methods.hammer import PLAIN, HammerConfig, build_demonstrations, hammer
from evolvent.models.policy import tiny_policy
from evolvent.models.toolprompt import Compact
from tests.methods.spelling import Spell, run_of

PIECES = ("ba", "ke", "di", "lo", "mu", "po", "ra", "su")
THINGS = ("rain", "mail", "song", "train")
WORDS = [
    *THINGS,
    *PIECES,
    "get",
    "about",
    "of",
    "the",
    "what",
    "string",
    "user",
    "assistant",
    "tool",
    "a",
    "b",
    "c",
    "integer",
    *"()[]:,=?\"'",
    "oslo",
    "rome",
    "bern",
    "kiev",
    "place",
]


def tool(thing):
    schema = {
        "type": "object",
        "properties": {"place": {"type": "string", "description": "the place"}},
        "required": ["place"],
    }
    return Tool(f"get_{thing}", f"about the {thing}", schema)


def sample(number, thing, other, place):
    said = Message("user", f"the {thing} of {place}")
    return CallSample(f"s{number}", (said,), (tool(thing), tool(other)), (Call(f"get_{thing}", {"place": place}),))


ONE = {"style": "snake", "words": PIECES, "pieces": (1, 1)}
MASKED = {"ratio": 0.8, "share": 0.0, "tokens": 32_000, **ONE}
TRAIN = TrainConfig(lr=3e-3, weight_decay=0.0, warmup_steps=2, batch_tokens=512)  # more updates of fewer tokens
PLACES = ("oslo", "rome", "bern", "kiev")
SAMPLES = [sample(n, THINGS[n % 4], THINGS[(n % 4 + 1 + n // 16) % 4], PLACES[n // 4 % 4]) for n in range(32)]


@pytest.fixture(scope="module")
def policy():
    return tiny_policy(sorted(set(WORDS)), size="xs", context=128, seed=1)


def test_what_is_learned(policy):
    config = HammerConfig(copies=2, ratio=1.0, style="snake", words=PIECES)
    found = list(build_demonstrations(SAMPLES[:6], config, Compact(), dialect=policy.dialect, seed=3))
    assert Counter(part.trajectory.partition("~")[0] for part in found) == {one.id: 2 for one in SAMPLES[:6]}
    texts = [policy.dialect.text(part.ids[part.written].tolist()) for part in found]
    assert not any("get" in text for text in texts), "all are masked"
    by_copy = [
        dict(
            zip(
                (p.trajectory[:-2] for p in found if p.trajectory.endswith(end)),
                (t for p, t in zip(found, texts, strict=True) if p.trajectory.endswith(end)),
                strict=True,
            )
        )
        for end in ("~0", "~1")
    ]
    assert all(by_copy[0][name] != by_copy[1][name] for name in by_copy[0]), "each copy is masked anew"
    plain = list(
        build_demonstrations(SAMPLES[:6], HammerConfig(copies=1, **PLAIN), Compact(), dialect=policy.dialect, seed=3)
    )
    assert all("get" in policy.dialect.text(part.ids[part.written].tolist()) for part in plain)


def test_taught_is_what_is_read_and_what_is_written():
    part = build_demonstration("t", [5, 6], [7, 8], weight=0.5)
    assert part.ids.tolist() == [5, 6, 7, 8] and part.written.tolist() == [False, False, True, True]
    assert part.weight.tolist() == [0, 0, 0.5, 0.5] and part.span.tolist() == [-1, -1, 0, 0] and part.feed == 3
    assert build_demonstration("t", [], [7, 8]).weight.tolist() == [0, 1]
    with pytest.raises(NothingToLearn, match="is empty"):
        build_demonstration("t", [5], [])


@pytest.fixture(scope="module")
def learned(policy, tmp_path_factory):
    """Two policies of one world of four tools: plain, and masked."""
    found = {}
    for name, more in (("plain", PLAIN), ("masked", MASKED)):
        with run_of(tmp_path_factory.mktemp(name), Spell(), train=TRAIN) as run:
            config = HammerConfig(**{"copies": 60, "tokens": 6_000, **more})
            found[name] = hammer(policy, SAMPLES, config=config, run=run, prompt=Compact(), dialect=policy.dialect)
    return found


def test_who_saw_other_names_reads_descriptions(learned):
    """On the names of training both are right; on names that nobody saw the plain one writes those it knows."""
    renamed = list(mask_panel(SAMPLES, MaskSpec(1.0, **ONE), seed=77))
    drops = {}
    for name, policy in learned.items():
        engine = LocalEngine(policy)
        sides = [
            answer_samples(side, Compact(), policy.dialect, engine=engine, max_tokens=24) for side in (SAMPLES, renamed)
        ]
        assert sum(one.grade.valid for one in sides[0]) >= 28, name
        drops[name] = measure_robustness(*sides)
    assert drops["masked"].mean < drops["plain"].mean - 0.2
    assert drops["plain"].low > 0


def test_nothing_fits(policy, tmp_path):
    with run_of(tmp_path / "run", Spell()) as run:
        with pytest.raises(NothingToLearn, match="no usable function-calling sample"):
            hammer(policy, [], config=HammerConfig(), run=run, prompt=Compact(), dialect=policy.dialect)
        with pytest.raises(ConfigError, match="two of 2 samples have the same id"):
            hammer(policy, [SAMPLES[0]] * 2, config=HammerConfig(), run=run, prompt=Compact(), dialect=policy.dialect)


def test_verdicts_of_texts():
    one = SAMPLES[0]
    right = Compact().render(one).target
    assert grade_answer(right, one, Compact())[1].valid
    for text, kind in (("nonsense (", "unreadable"), ("[]", "")):
        calls, verdict = grade_answer(text, one, Compact())
        assert not verdict.valid and (not kind or verdict.kind == kind) and (calls is None) == bool(kind)
    nothing = CallSample("n", one.messages, one.tools[1:], ())
    assert grade_answer("[]", nothing, Compact())[1].valid and not grade_answer("hm (", nothing, Compact())[1].valid
    with pytest.raises(ConfigError, match="hold different samples"):
        measure_robustness([], [CallAnswer(one, right, one.calls, CallGrade(True), 1)])
