"""History policies: what is read again when the context is full, token-exact for the actions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.agents.history import Refuse, Summarise, Turn, Window, digest_turns
from evolvent.models.dialects import Words
from evolvent.models.tiny import word_tokenizer

DIALECT_WORDS = word_tokenizer(["task", "go", "a", "b", "c", "saw"])
DIALECT = Words(DIALECT_WORDS)


def turn(seen: str, action: str, stopped: bool = True) -> Turn:
    ids = DIALECT.action(action)
    return Turn(seen, tuple(ids if stopped else ids[:-1]), stopped)


TURNS = [turn("task go c", "go a"), turn("saw a", "go b"), turn("saw b", "go c", stopped=False)]


def words(ids):
    return DIALECT_WORDS.decode(ids)


def test_refuse_gives_up():
    assert Refuse()(DIALECT, "", TURNS, "saw c", 100) is None


def test_window_keeps_the_task_and_the_last_turns_that_fit():
    ids = Window(share=1.0)(DIALECT, "", TURNS, "saw c", 20)
    assert (
        words(ids)
        == "<bos> <obs> task go c <act> go a <eos> <obs> saw b <act> go c <eos> <obs> saw c <act>"[: len(words(ids))]
    )
    assert len(ids) <= 20
    assert words(ids).startswith("<bos> <obs> task go c <act> go a <eos>")
    assert words(ids).endswith("<obs> saw c <act>")


def test_window_shrinks_to_the_first_turn_and_then_gives_up():
    ids = Window()(DIALECT, "", TURNS, "saw c", 14)
    assert words(ids) == "<bos> <obs> task go c <act> go a <eos> <obs> saw c <act>"
    assert Window()(DIALECT, "", TURNS, "saw c", 8) is None


def test_window_closes_an_action_that_was_cut():
    ids = Window(share=1.0)(DIALECT, "", TURNS, "saw c", 30)
    assert "<act> go c <eos> <obs> saw c" in words(ids)


def test_summary_lists_the_latest_answer_of_each_action():
    assert digest_turns([("go a", "saw a"), ("go b", "saw b"), ("go a", "saw c")]) == "go a\nsaw c\ngo b\nsaw b"
    ids = Summarise()(DIALECT, "", TURNS, "saw c", 60)
    assert words(ids) == "<bos> <obs> task go c go a saw a go b saw b go c saw c <act>"


def test_summary_drops_the_oldest_until_it_fits():
    ids = Summarise()(DIALECT, "", TURNS, "saw c", 10)
    assert words(ids) == "<bos> <obs> task go c go c saw c <act>"
    assert Summarise()(DIALECT, "", TURNS, "saw c", 5) is None


def rebuilt(turns, observation):
    """A conversation from its beginning, the long way."""
    ids, seen = [], [*(turn.observation for turn in turns), observation]
    for at, text in enumerate(seen):
        ids += DIALECT.turn(text, stopped=turns[at - 1].stopped) if at else DIALECT.open("", text)
        ids += turns[at].action if at < len(turns) else ()
    return ids


def test_no_policy_shortens_a_first_observation_that_is_too_long():
    assert [policy(DIALECT, "", [], "saw a b c", 3) for policy in (Refuse(), Window(), Summarise())] == [None] * 3


SAID = st.lists(st.sampled_from(["a", "saw", "go"]), min_size=1, max_size=4).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.builds(turn, SAID, SAID, st.booleans()), max_size=7), SAID, st.integers(0, 60), st.floats(0.1, 1.0))
def test_a_window_is_the_longest_that_fits_into_the_share(turns, observation, room, share):
    want = None
    for first in range(1, len(turns) + 1):
        ids = rebuilt([turns[0], *turns[first + 1 :]], observation)
        if len(ids) <= room * share or (first == len(turns) and len(ids) <= room):
            want = ids
            break
    assert Window(share)(DIALECT, "", turns, observation, room) == want


class Counting(Words):
    """Counts the texts that it makes tokens of."""

    texts = 0

    def turn(self, observation, *, stopped):
        self.texts += 1
        return super().turn(observation, stopped=stopped)


def test_a_window_makes_every_text_tokens_once():
    """A long conversation is cut on the thread that drives all episodes: not once for every turn that goes."""
    counting = Counting(DIALECT_WORDS)
    turns = [turn("saw a b c", "go a", stopped=at % 7 > 0) for at in range(200)]
    kept = Window()(counting, "", turns, "saw c", 1000)
    assert kept is not None and 400 < len(kept) <= 500
    assert counting.texts <= 2 * len(turns)
