"""History policies: what is read again when the context is full, token-exact for the actions."""

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
