"""Subsets: features without a model, rows as demonstrations, blocks that are kept, who is chosen and who is not."""

import json

import numpy as np
import pytest

from evolvent.curate.demonstrations import answer_only, build_demonstration, build_demonstrations, prompt_for
from evolvent.curate.difficulty import answer_logprobs, mean_logprob_score
from evolvent.curate.features import answer_features, unit_features
from evolvent.curate.judged import PolicyMeasure
from evolvent.curate.origins import read_source
from evolvent.curate.select import restarted_map
from evolvent.curate.shards import list_shards
from evolvent.curate.subset import SELECTORS, TextMeasure, iterate_selected, iterate_texts, measure_rows, select_rows
from evolvent.errors import ConfigError, CorruptRecord, NothingToLearn, SampleInvalid, VocabularyMismatch
from evolvent.learn.windows import Intake
from evolvent.memory.encoders import HashedNgrams
from evolvent.models.policy import tiny_policy
from evolvent.models.toolprompt import Compact, FourBlocks
from evolvent.store.store import Store
from evolvent.trajectory import ErrorRecord, Score, Step, Task, Trajectory
from tests.learn.byte_policy import byte_policy

WORDS = ("red", "green", "blue", "grey", "say", ";", "\n", *"()[]:,=?\"'", "user", "tool", "place", "string", "oslo")
ROWS = [{"prompt": f"say {a}", "completion": f"{a} {b}"} for a in WORDS[:4] for b in WORDS[:4]]


@pytest.fixture(scope="module")
def policy():
    return tiny_policy(sorted(WORDS), context=32, seed=1)


# ---------------------------------------------------------------------------------------------------- features


def test_texts_of_a_row():
    row = {"a": "x", "b": [{"c": "y"}, 3, None], "d": "z"}
    assert list(iterate_texts(row)) == ["x", "y", "z"] and list(iterate_texts(row, ("d", "b", "none"))) == ["z", "y"]


# ---------------------------------------------------------------------------------------------------- demonstrations


def test_every_layout_is_learned_where_it_should(policy):
    def learned(row):
        part = build_demonstration(row, policy, name="x")
        return policy.dialect.text(part.ids[part.weight > 0].tolist()).strip()

    talk = [{"role": "user", "content": "say red"}, {"role": "assistant", "content": "red blue"}]
    names = (("prompt", "completion"), ("question", "answer"), ("problem", "solution"))
    for row in ({"messages": talk}, *({asked: "say red", answered: "red blue"} for asked, answered in names)):
        assert learned(row).startswith("red blue"), row
    assert learned({"text": "say red blue"}).startswith("red blue"), "nothing comes before a text's first word"
    tools = [{"name": "say", "description": "say", "parameters": {"place": {"type": "string", "description": "place"}}}]
    call = {
        "query": "say oslo",
        "tools": json.dumps(tools),
        "id": 1,
        "answers": json.dumps([{"name": "say", "arguments": {"place": "oslo"}}]),
    }
    assert isinstance(prompt_for(policy), Compact) and "oslo" in learned(call) and "[" in learned(call)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"title": "red"}, "unknown row format"),
        ({"prompt": "say", "completion": " "}, "the conversation has no reply to learn"),
        ({"prompt": "say", "completion": 3}, "the assistant of the row is neither text nor messages"),
        ({"messages": []}, "no reply|conversation"),
        ({"prompt": "say", "completion": "red " * 40}, "the sequence is longer than the context"),
        ({"prompt": "say", "completion": "unheard of"}, "unheard"),
    ],
)
def test_what_is_no_demonstration(policy, row, error):
    with pytest.raises((SampleInvalid, VocabularyMismatch), match=error):
        build_demonstration(row, policy, name="x")


def test_bad_rows_are_counted_and_the_others_go_on(policy):
    tally = Intake()
    made = list(build_demonstrations([ROWS[0], {"x": 1}, ROWS[1]], policy, intake=tally))
    assert [part.trajectory for part in made] == ["row-0", "row-2"]
    assert (tally.rows, tally.parts, tally.refused) == (3, 2, 1) and tally.problems[0].where == "row 1"
    assert len(build_demonstration({"text": "red " * 90}, policy, name="x", too_long="truncate")) == 32


def test_an_answer_alone(policy):
    part = build_demonstration(ROWS[1], policy, name="x")
    bare = answer_only(part, policy)
    assert bare.ids[bare.weight > 0].tolist() == part.ids[part.weight > 0].tolist() and len(bare) < len(part)
    turns = [{"role": who, "content": "red"} for who in ("user", "assistant", "user", "assistant")]
    with pytest.raises(SampleInvalid, match="the row is not a prompt with a single answer"):
        answer_only(build_demonstration({"messages": turns}, policy, name="x"), policy)


# ---------------------------------------------------------------------------------------------------- measuring


def test_a_policy_says_what_it_says(policy, tmp_path):
    parts = list(build_demonstrations(ROWS, policy))
    easy = mean_logprob_score(answer_logprobs(policy, parts))
    known = measure_rows(ROWS, PolicyMeasure(policy, "p"), cache=tmp_path, block=5)
    np.testing.assert_allclose(known.quality, easy, rtol=1e-5)
    np.testing.assert_allclose(known.features, answer_features(policy, parts), rtol=1e-4, atol=1e-5)
    hard = measure_rows(ROWS, PolicyMeasure(policy, "p", features="none", quality="difficulty"), cache=tmp_path)
    np.testing.assert_allclose(hard.quality, 1 - easy, rtol=1e-5)
    ifd = measure_rows(ROWS, PolicyMeasure(policy, "p", features="none", quality="ifd"), cache=tmp_path)
    bare = answer_logprobs(policy, [answer_only(part, policy) for part in parts])
    ratio = [a.mean() / b.mean() for a, b in zip(answer_logprobs(policy, parts), bare, strict=True)]
    np.testing.assert_allclose(ifd.quality, ratio, rtol=1e-4)
    other = tiny_policy(sorted(WORDS), context=32, seed=2)
    rho = PolicyMeasure(policy, "p", features="none", quality="reducible", reference=(other, "o"))
    losses = [-np.array([one.mean() for one in answer_logprobs(who, parts)]) for who in (policy, other)]
    np.testing.assert_allclose(
        measure_rows(ROWS, rho, cache=tmp_path).quality, losses[0] - losses[1], rtol=1e-3, atol=1e-5
    )


def test_lines_weigh_alike(policy, tmp_path):
    row = {"prompt": "say", "completion": "red"}
    one, lined = (
        measure_rows([row, ROWS[3]], PolicyMeasure(policy, "p", features="none", lines=lines), cache=tmp_path)
        for lines in (False, True)
    )
    np.testing.assert_allclose(one.quality, lined.quality, rtol=1e-6)  # one line is the whole answer


def test_lines_of_an_open_vocabulary(tmp_path):
    policy = byte_policy(context=128)
    row = {"prompt": "say", "completion": "ab\ncdefgh"}
    part = build_demonstration(row, policy, name="x")
    (said,) = answer_logprobs(policy, [part])
    lines = [np.exp(said[:3].mean()), np.exp(said[3:].mean())]  # "ab" and its break; the rest and the end of the turn
    known = measure_rows([row], PolicyMeasure(policy, "p", features="none", lines=True), cache=tmp_path)
    np.testing.assert_allclose(known.quality, [np.mean(lines)], rtol=1e-4)
    assert len(said) > 8 and isinstance(prompt_for(policy), FourBlocks), "its chat template shows no tools"


def test_what_a_policy_cannot_be_asked(policy):
    with pytest.raises(ConfigError, match="a reducible loss needs a reference model"):
        PolicyMeasure(policy, "p", quality="reducible")
    strange = tiny_policy(["other"], context=32)
    with pytest.raises(ConfigError, match="tokenizer"):
        PolicyMeasure(policy, "p", quality="reducible", reference=(strange, "s"))


def test_rows_that_cannot_be_used_keep_their_places(policy, tmp_path):
    rows = [{"x": 1}, ROWS[0], {"prompt": "say", "completion": "unheard"}, ROWS[5]]
    rows = [{**row, "weight": at} for at, row in enumerate(rows)]
    for block in (1, 2, 9):
        known = measure_rows(
            rows,
            PolicyMeasure(policy, "p", text=TextMeasure(width=0, quality="weight")),
            cache=tmp_path / str(block),
            block=block,
        )
        assert known.row_indices.tolist() == [1, 3] and sorted(known.refused) == [0, 2]
        assert known.quality.tolist() == [1.0, 3.0] and len(known.features) == 2
    texts = measure_rows([{"t": "red"}, {"n": 1}, {"t": "blue"}], TextMeasure(), cache=tmp_path)
    assert texts.row_indices.tolist() == [0, 2] and "the row has no text" in texts.refused[1]
    with pytest.raises(NothingToLearn, match="no usable row"):
        measure_rows([{"n": 1}], TextMeasure(), cache=tmp_path)


class Counting(TextMeasure):
    asked = 0

    def __call__(self, rows):
        type(self).asked += len(rows)
        return super().__call__(rows)


def test_blocks_are_measured_once(tmp_path):
    rows = [{"text": f"{word} {n}"} for n, word in enumerate(WORDS[:4] * 3)]
    Counting.asked = 0
    first = measure_rows(rows, Counting(), cache=tmp_path, block=5)
    again = measure_rows(rows, Counting(), cache=tmp_path, block=5)
    assert (Counting.asked, first.reused, again.reused, again.blocks) == (12, 0, 3, 3)
    assert np.array_equal(first.features, again.features)
    changed = [*rows[:11], {"text": "another"}]
    assert measure_rows(changed, Counting(), cache=tmp_path, block=5).reused == 2 and Counting.asked == 14
    for file in sorted(tmp_path.glob("*.npz"))[:2]:
        file.write_bytes(file.read_bytes()[:-40])
    cut = measure_rows(rows, Counting(), cache=tmp_path, block=5)
    assert cut.reused < 3 and np.array_equal(first.features, cut.features)
    assert measure_rows(rows, Counting(width=64), cache=tmp_path, block=5).reused == 0


# ---------------------------------------------------------------------------------------------------- choosing


@pytest.mark.parametrize("by", SELECTORS)
def test_every_selector_chooses(by, tmp_path):
    rows = [
        {"text": f"{a} {b}", "score": 0.01 * (7 * n % 16)}
        for n, (a, b) in enumerate((a, b) for a in WORDS[:4] for b in WORDS[:4])
    ]
    known = measure_rows(rows, TextMeasure(quality="score"), cache=tmp_path)
    one, same, other = (select_rows(known, 5, selector=by, seed=seed).indices.tolist() for seed in (0, 0, 1))
    assert one == same and len(set(one)) == 5 and (by != "random" or one != other)
    if by in ("top", "ifd"):
        assert one == sorted(range(16), key=lambda n: -rows[n]["score"])[:5]
    if by == "dpp":
        features = unit_features(HashedNgrams()([row["text"] for row in rows]))
        assert one == restarted_map(features, [row["score"] for row in rows], 5).indices.tolist()
        assert len(select_rows(known, 12, selector=by, cells=3).indices) == 12


def test_rows_that_are_alike_can_be_chosen(tmp_path):
    known = measure_rows([{"text": "red"}] * 3, TextMeasure(), cache=tmp_path)
    assert len(select_rows(known, 2, selector="dpp").indices) == 2


def test_what_is_written(tmp_path):
    rows = [{"text": word} for word in WORDS[:4]] + [{"n": 1}]
    known = measure_rows(rows, TextMeasure(), cache=tmp_path)
    chosen = select_rows(known, 2, selector="k_centre")
    assert list(iterate_selected(rows, known, chosen)) == [rows[at] for at in sorted(chosen.indices)]
    choice = list(iterate_selected((), known, chosen, output="choice"))
    assert [one["row"] for one in choice] == list(range(5)) and "the row has no text" in choice[4]["why"]
    ranks = {one["row"]: one["chosen"] for one in choice if one["chosen"] is not None}
    assert [ranks[at] for at in chosen.indices.tolist()] == [0, 1]
    assert choice[int(chosen.indices[0])]["gain"] is None, "infinity is no JSON"
    for other in ([*rows[:3], {"text": "new"}, rows[4]], rows[:4], [*rows, rows[0]]):
        with pytest.raises(CorruptRecord):
            list(iterate_selected(other, known, chosen))


# ---------------------------------------------------------------------------------------------------- stores


def played(name, *, error=None, action="red"):
    ended = {"ended_by": "error", "error": error} if error else {}
    return Trajectory(
        name,
        Task("spell", "1", {"n": name}, kind="one"),
        (Step("say red", action, 1.0),),
        "well done",
        score=Score(1.0, 1.0, True),
        **ended,
    )


def test_a_store_gives_rows(tmp_path, policy):
    run = tmp_path / "run"
    with Store.open(run / "trajectories", writing=True) as store:
        store.append(played("a"))
        store.append(played("b", error=ErrorRecord("EnvCrashed", "gone", 0, False)))
        store.append(played("c", action=np.zeros(2)))
    Store.open(run / "trajectories").seal()
    with Store.open(run / "trajectories", writing=True) as store:
        store.append(played("d"))
    refused = []
    rows = list(read_source(run, refused))
    assert [row["id"] for row in rows] == ["a", "d"] and rows == list(read_source(run / "trajectories", []))
    assert rows[0]["messages"][:2] == [{"role": "user", "content": "say red"}, {"role": "assistant", "content": "red"}]
    assert (rows[0]["world"], rows[0]["kind"], rows[0]["score"], rows[0]["success"]) == ("spell", "one", 1.0, True)
    assert [line.partition(":")[0] for line in refused] == ["b", "c"] and "EnvCrashed" in refused[0]
    part = build_demonstration(rows[0], tiny_policy([*WORDS, "well", "done"], context=32), name="x")
    assert part.feed
    with pytest.raises(ConfigError, match="data convert"):
        list_shards(run)


def unknown_packing(block):
    """An archive whose list of contents names a way of packing that there is not."""
    at = block.index(b"PK\x01\x02") + 10
    return block[:at] + b"\x63" + block[at + 1 :]


@pytest.mark.parametrize(
    "left", [lambda _: b"", lambda _: b"PK\x03\x04", lambda _: b"nothing of the kind", unknown_packing]
)
def test_a_block_that_was_cut_off_or_spoilt_is_measured_again(tmp_path, left):
    measure_rows(ROWS, TextMeasure(width=8), cache=tmp_path)
    for block in tmp_path.glob("*.npz"):
        block.write_bytes(left(block.read_bytes()))
    assert measure_rows(ROWS, TextMeasure(width=8), cache=tmp_path).reused == 0
    assert measure_rows(ROWS, TextMeasure(width=8), cache=tmp_path).reused == 1
