from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import small_policy

from evolvent.errors import BatchMismatch, VocabularyMismatch
from evolvent.learn.token_sequences import TokenSequence, check_sequences, flatten
from evolvent.models.tiny import read_vocabulary
from evolvent.trajectory import Generation, Score, Step, Task, Trajectory

POLICY = small_policy(layers=1)
DIALECT, VOCABULARY = POLICY.dialect, read_vocabulary(POLICY.tokenizer)
BOS, EOS, OBS, ACT = 1, 2, 4, 5
TASK = Task("small", "1", {"number": 1})


def word(text: str) -> list[int]:
    return [VOCABULARY[w] for w in text.split()]


def generation(ids: list[int], sampled: list[int], **more: object) -> Generation:
    marks = np.asarray(sampled, np.bool_)
    logprobs = np.where(marks, -np.arange(1.0, len(ids) + 1), 0.0)
    return Generation(np.asarray(ids, np.int32), marks, logprobs.astype(np.float32), **more)  # type: ignore[arg-type]


def trajectory(*steps: Step, **more: object) -> Trajectory:
    return Trajectory("t", TASK, steps, **more)  # type: ignore[arg-type]


def flat(*trajectories: Trajectory, **more: object) -> list[TokenSequence]:
    options = {"instructions": lambda task: "", "context": 64, **more}
    return flatten(trajectories, DIALECT, **options).sequences  # type: ignore[arg-type]


def test_text_golden() -> None:
    (parts,) = flat(
        trajectory(Step("you see", "take lamp"), Step("nothing", "go"), score=Score(2.0, 1.0, True), group="g")
    )
    assert parts.ids.tolist() == [
        BOS,
        OBS,
        *word("you see"),
        ACT,
        *word("take lamp"),
        EOS,
        OBS,
        *word("nothing"),
        ACT,
        *word("go"),
        EOS,
    ]
    assert parts.written.tolist() == [False] * 5 + [True] * 3 + [False] * 3 + [True] * 2
    assert parts.weight.tolist() == parts.written.astype(float).tolist()
    assert not parts.sampled.any() and not parts.logprobs.any()
    assert parts.step.tolist() == [0] * 8 + [1] * 5
    assert parts.span.tolist() == [-1] * 5 + [0] * 3 + [-1] * 3 + [1] * 2
    assert (parts.trajectory, parts.group, parts.reward, parts.unit) == ("t", "g", 2.0, 1.0)
    assert parts.feed == 12  # the last target is token 12, predicted from the twelve before it


def test_generations_are_taken_token_exact_and_never_tokenised_again() -> None:
    first = generation([BOS, OBS, 9, ACT, 11, 17, EOS], [0, 0, 0, 0, 1, 1, 1], spans=(5, 7))
    second = generation([OBS, 7, ACT, 8, EOS], [0, 0, 0, 1, 1], extends=0)
    (parts,) = flat(
        trajectory(Step("word unknown", "other text", generations=(first,)), Step("x", "y", generations=(second,)))
    )
    assert parts.ids.tolist() == [*first.ids, *second.ids]
    assert parts.sampled.tolist() == parts.written.tolist() == [*first.sampled, *second.sampled]
    assert parts.logprobs.tolist() == [*first.logprobs, *second.logprobs]
    assert parts.weight.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]
    assert parts.step.tolist() == [0] * 7 + [1] * 5
    assert parts.span.tolist() == [-1, -1, -1, -1, 0, 1, 1, -1, -1, -1, 3, 3]


def test_a_new_root_is_a_sequence_of_its_own() -> None:
    first, second = generation([BOS, 9], [0, 1]), generation([BOS, 8, 7], [0, 0, 1])
    made = flat(trajectory(Step("a", "b", generations=(first,)), Step("c", "d", generations=(second,))))
    assert [p.ids.tolist() for p in made] == [[BOS, 9], [BOS, 8, 7]]
    assert [p.step.tolist() for p in made] == [[0, 0], [1, 1, 1]]


def test_a_fork_has_its_shared_prefix_weighted_once() -> None:
    root = generation([BOS, 9], [0, 1])
    left, right = generation([8, 7], [0, 1], extends=0), generation([6], [1], extends=0)
    made = flat(trajectory(Step("a", "b", generations=(root,)), Step("c", "d", generations=(left, right))))
    assert [p.ids.tolist() for p in made] == [[BOS, 9, 8, 7], [BOS, 9, 6]]
    assert [p.weight.tolist() for p in made] == [[0, 1, 0, 1], [0, 0, 1]]


def test_weights_of_what_is_not_learned_are_zero() -> None:
    thought = generation([BOS, 9, 9], [0, 1, 1], acted=False)
    acted = generation([8, 7], [0, 1], extends=0)
    (parts,) = flat(trajectory(Step("a", "b", generations=(thought, acted))))
    assert parts.weight.tolist() == [0, 0, 0, 0, 1] and parts.written.tolist() == [False, True, True, False, True]
    marked = Step("a", "b", generations=(generation([BOS, 9], [0, 1]),), info={"loss": False})
    assert not flat(trajectory(marked))[0].weight.any()
    text = flat(trajectory(Step("you", "go", info={"loss": False}), Step("you", "go", info={"loss": True})))[0]
    assert np.flatnonzero(text.weight).tolist() == [9, 10]


def test_the_trajectory_weight_multiplies_and_must_be_finite() -> None:
    steps = (Step("you", "go"),)
    (parts,) = flat(trajectory(*steps), weight=lambda t: 0.25)
    assert parts.weight.tolist() == [0, 0, 0, 0, 0.25, 0.25]
    with pytest.raises(BatchMismatch, match=r"weight of trajectory 't'.*nan"):
        flat(trajectory(*steps), weight=lambda t: float("nan"))


def test_a_first_token_is_no_target() -> None:
    (parts,) = flat(trajectory(Step("a", "b", generations=(generation([9, 8], [1, 1]),))))
    assert parts.weight.tolist() == [0, 1]


def test_thoughts_are_rendered_where_asked() -> None:
    step = Step("you", "go", thought="see door")
    (parts,) = flat(trajectory(step), render=lambda task, step: f"{step.thought} {step.action}")
    assert parts.ids.tolist() == [BOS, OBS, *word("you"), ACT, *word("see door go"), EOS]


def test_too_long_is_refused_and_listed() -> None:
    long, short = trajectory(*[Step("you see a door", "go north")] * 3), trajectory(Step("you", "go"))
    made = flatten([long, short], DIALECT, instructions=lambda task: "", context=10)
    assert len(made.sequences) == 1 and len(made.refused) == 1
    assert made.refused[0].where == "t" and "28 tokens" in made.refused[0].what


def test_arrays_and_unknown_words_name_the_trajectory() -> None:
    with pytest.raises(BatchMismatch, match=r"step 0 of trajectory 't' has no text: got ndarray"):
        flat(trajectory(Step("you", np.zeros(2))))
    with pytest.raises(VocabularyMismatch, match=r"trajectory 't'.*world 'small'.*'dragon'"):
        flat(trajectory(Step("you see a dragon", "go")))
    ahead = Step("a", "b", generations=(generation([BOS, 9], [0, 1], extends=0),))
    with pytest.raises(BatchMismatch, match="does not extend an earlier generation"):
        flat(trajectory(ahead))


def test_without_steps_there_is_nothing() -> None:
    assert flat(trajectory()) == []


def test_check_parts_names_the_trajectory() -> None:
    (parts,) = flat(trajectory(Step("you", "go")))
    most = int(parts.ids.max())
    check_sequences([parts], vocabulary=most + 1, context=5)  # the last of its six tokens is never fed
    with pytest.raises(BatchMismatch, match=r"'t' is longer.*got 5, expected at most 4 tokens"):
        check_sequences([parts], vocabulary=most + 1, context=4)
    with pytest.raises(VocabularyMismatch, match=rf"'t' has a token id.*got {most}, expected 0 to {most - 1}"):
        check_sequences([parts], vocabulary=most, context=6)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(-1, 6), st.integers(1, 4), st.booleans()), min_size=1, max_size=7), st.data())
def test_any_forest_is_learned_exactly_once(shape: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    """Every sampled token of an acting generation has its weight in exactly one sequence; every path is there."""
    generations = []
    for index, (parent, size, acted) in enumerate(shape):
        extends = None if parent < 0 or index == 0 else parent % index
        ids = [100 * (index + 1) + i for i in range(size + 1)]
        generations.append(generation(ids, [0] + [1] * size, extends=extends, acted=acted))
    made = flat(trajectory(Step("a", "b", generations=tuple(generations))), context=1000)
    learned = [i for p in made for i in p.ids[p.weight > 0].tolist()]
    assert sorted(learned) == sorted(i for g in generations if g.acted for i in g.ids[g.sampled].tolist())
    leaves = set(range(len(shape))) - {g.extends for g in generations}
    assert [p.ids[-1] for p in made] == [generations[leaf].ids[-1] for leaf in sorted(leaves)]  # type: ignore[type-var]
    for parts in made:
        starts = [i // 100 - 1 for i in parts.ids.tolist() if i % 100 == 0]
        assert [generations[i].extends for i in starts] == [None, *starts[:-1]]
