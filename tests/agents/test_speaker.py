"""A policy in conversation: token-exact turns, the newest snapshot between them, and trouble that ends no talk."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evolvent.agents.speaker import Conversation, FixedSource, NamedPolicy, PolicyChat, SnapshotSource, _split_reply
from evolvent.engine.asks import Sampling
from evolvent.errors import ContextOverflow, EngineError, Incomplete, VocabularyMismatch
from evolvent.models.policy import load_policy
from evolvent.models.snapshots import publish_snapshot
from tests.bench.small_policies import publish, small_policy, state

GREEDY = Sampling(temperature=0.0)


def spoken(talk, speaker, *texts):
    for text in texts:
        talk = talk.after(speaker.reply(talk, text))
    return talk


def greedy(policy, ids, count):
    """The likeliest continuation by the model's own forward, stop token included."""
    begin = len(ids)
    with torch.no_grad():
        for _ in range(count):
            ids = [*ids, int(policy.model(torch.tensor([ids])).logits[0, -1].argmax())]
            if ids[-1] in policy.dialect.stop_ids:
                break
    return tuple(ids[begin:])


def test_every_turn_extends_the_tokens_of_the_last_one():
    policy = small_policy(seed=4)
    speaker = PolicyChat(FixedSource(NamedPolicy(policy, "small")), sampling=GREEDY, max_tokens=5)
    talk = spoken(Conversation(), speaker, "you see a lamp", "go north", "take key")
    ids = policy.dialect.open("", "you see a lamp")
    for number, exchange in enumerate(talk.exchanges):
        written = greedy(policy, ids, 5)
        assert exchange.turn.action == written and exchange.reply == policy.dialect.text(written)
        assert exchange.is_cut == (written[-1] not in policy.dialect.stop_ids)
        if number < 2:
            said = talk.exchanges[number + 1].message
            ids = [*ids, *written, *policy.dialect.turn(said, stopped=not exchange.is_cut)]
    assert [exchange.notes for exchange in talk.exchanges] == [("small speaks",), (), ()]
    assert not any(exchange.is_shortened for exchange in talk.exchanges)


def test_pieces_are_the_reply_with_the_models_own_chances():
    policy = small_policy(seed=4)
    speaker = PolicyChat(
        FixedSource(NamedPolicy(policy, "small")), sampling=Sampling(temperature=2.0), max_tokens=6, seed=3
    )
    said = speaker.reply(Conversation(), "you see a lamp")
    ids = [*policy.dialect.open("", "you see a lamp"), *said.turn.action]
    with torch.no_grad():
        chances = policy.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    own = [float(chances[at - 1, ids[at]]) for at in range(len(ids) - len(said.turn.action), len(ids))]
    assert "".join(piece.text for piece in said.pieces) == said.reply
    assert [piece.logprob for piece in said.pieces] == pytest.approx(own[: len(said.pieces)], abs=1e-4)
    assert len(said.pieces) >= 5


def test_the_same_conversation_has_the_same_reply():
    speakers = [
        PolicyChat(FixedSource(NamedPolicy(small_policy(seed=4), "small")), max_tokens=5, seed=seed)
        for seed in (1, 1, 2)
    ]
    replies = [
        [one.reply for one in spoken(Conversation(), each, "go north", "go north").exchanges] for each in speakers
    ]
    assert replies[0] == replies[1] != replies[2]
    assert replies[0][0] != replies[0][1]


def test_instructions_come_first():
    policy = small_policy()

    class Telling(type(policy.dialect)):
        def open(self, instructions, observation):
            return super().open("", f"{instructions} {observation}")

    told = NamedPolicy(type(policy)(policy.model, policy.tokenizer, Telling(policy.tokenizer)), "small")
    speaker = PolicyChat(FixedSource(told), sampling=GREEDY, max_tokens=4)
    one, two = (speaker.reply(Conversation(system), "go north") for system in ("take key", "drop lamp"))
    assert one.turn.action == greedy(policy, policy.dialect.open("", "take key go north"), 4)
    assert one.pieces[0].logprob != two.pieces[0].logprob


# ---------------------------------------------------------------------- a training that goes on


def test_the_newest_snapshot_speaks_from_the_next_turn_on(tmp_path):
    state(tmp_path, "running")
    publish(tmp_path, 10)
    speaker = PolicyChat(SnapshotSource(tmp_path), sampling=GREEDY, max_tokens=5)
    talk = spoken(Conversation(), speaker, "you see a lamp", "go north")
    publish(tmp_path, 20, keep=1)
    assert speaker.newest() == "step 20" and speaker.voice.name == "step 10", "nothing changes within a turn"
    talk = spoken(talk, speaker, "take key")
    assert [one.policy_name for one in talk.exchanges] == ["step 10", "step 10", "step 20"]
    assert [one.notes for one in talk.exchanges] == [("step 10 speaks",), (), ("step 20 speaks",)]
    assert not (tmp_path / "snapshots" / "step-000010").exists(), "what was loaded is not held any longer"
    new, ids = small_policy(seed=20), []
    for number, one in enumerate(talk.exchanges):
        before = talk.exchanges[number - 1]
        ids += new.dialect.turn(one.message, stopped=not before.is_cut) if number else new.dialect.open("", one.message)
        if number < 2:
            ids += one.turn.action
    assert talk.exchanges[2].turn.action == greedy(new, ids, 5), "it reads what the other one wrote, token by token"


def test_a_run_that_has_ended_speaks_by_its_model(tmp_path):
    state(tmp_path, "running")
    publish(tmp_path, 10)
    speaker = PolicyChat(SnapshotSource(tmp_path), sampling=GREEDY, max_tokens=4)
    speaker.refresh()
    small_policy(seed=99).save(tmp_path / "model")
    assert speaker.refresh() == () and speaker.newest() == "step 10", "the model of an earlier end, while it goes on"
    state(tmp_path, "finished")
    assert speaker.newest() == "final model"
    said = speaker.reply(Conversation(), "go north")
    assert (said.policy_name, said.notes) == ("final model", ("final model speaks",))
    assert said.turn.action == greedy(load_policy(tmp_path / "model"), small_policy().dialect.open("", "go north"), 4)
    assert speaker.refresh() == ()


def test_nobody_can_speak_yet(tmp_path):
    speaker = PolicyChat(SnapshotSource(tmp_path))
    with pytest.raises(Incomplete, match="no policy has been published yet"):
        speaker.refresh()
    assert speaker.newest() is None
    publish(tmp_path, 0)
    assert speaker.refresh() == ("step 0 speaks",)


@pytest.mark.parametrize("damage", ["weights", "tokenizer", "config", "pointer"])
def test_a_snapshot_that_cannot_be_read_ends_no_talk(tmp_path, damage):
    publish(tmp_path, 10)
    speaker = PolicyChat(SnapshotSource(tmp_path), sampling=GREEDY, max_tokens=4)
    talk = spoken(Conversation(), speaker, "go north")
    path = publish(tmp_path, 20)
    name = {"weights": "model.safetensors", "tokenizer": "tokenizer.json", "config": "config.json"}.get(damage)
    target = path.parent / "LATEST.json" if name is None else path / name
    target.write_bytes(target.read_bytes()[:-5])
    said = speaker.reply(talk, "go north")
    assert said.policy_name == "step 10" and len(said.notes) == 1
    assert said.notes[0].startswith("step 10 goes on, because a newer voice cannot be loaded: ")
    if damage != "pointer":
        assert speaker.reply(talk, "go north").notes == (), "it is told once"
    publish(tmp_path, 30)
    assert speaker.reply(talk, "go north").notes == ("step 30 speaks",)


def test_the_first_voice_must_be_readable(tmp_path):
    path = publish(tmp_path, 10)
    (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(Incomplete, match="does not have a safetensors header"):
        PolicyChat(SnapshotSource(tmp_path)).refresh()


def test_weights_that_diverged_are_told_and_the_next_ones_speak(tmp_path):
    broken = small_policy()
    with torch.no_grad():
        broken.model.model.norm.weight.fill_(float("nan"))
    publish_snapshot(tmp_path, 1, broken.save)
    speaker = PolicyChat(SnapshotSource(tmp_path), max_tokens=4)
    with pytest.raises(Incomplete, match=r"are not all numbers: got NaN or infinity in model\.norm\.weight"):
        speaker.reply(Conversation(), "go north")
    publish(tmp_path, 2)
    assert speaker.reply(Conversation(), "go north").policy_name == "step 2"


# ---------------------------------------------------------------------- trouble with what is said


def test_what_cannot_be_read_leaves_the_conversation_as_it_was():
    speaker = PolicyChat(FixedSource(NamedPolicy(small_policy(), "small")), max_tokens=4)
    talk = spoken(Conversation(), speaker, "go north")
    with pytest.raises(VocabularyMismatch, match="hello"):
        speaker.reply(talk, "hello there")
    assert len(spoken(talk, speaker, "take key").exchanges) == 2
    assert speaker.reply(talk, "go \ud800").message == "go ?", "half a character, as a terminal may hand it out"


def test_a_long_conversation_loses_its_middle():
    """64 tokens of context: the first turn and the last ones stay, and it is said."""
    policy = small_policy(seed=4)
    speaker = PolicyChat(FixedSource(NamedPolicy(policy, "small")), sampling=GREEDY, max_tokens=8)
    talk = spoken(Conversation(), speaker, *["you see a lamp"] * 8)
    marks = [one.is_shortened for one in talk.exchanges]
    assert not marks[0] and marks[-1] and marks == sorted(marks)
    again = speaker.reply(talk, "go north")
    assert again.is_shortened and again.reply
    with pytest.raises(ContextOverflow, match="Shorten the message, or start a new conversation"):
        speaker.reply(talk, "go north " * 30)
    with pytest.raises(ContextOverflow):
        speaker.reply(Conversation(), "go north " * 40)
    assert speaker.reply(Conversation(), "go north " * 30).turn.action, "one that leaves little room"


def test_a_reply_can_be_given_up():
    speaker = PolicyChat(FixedSource(NamedPolicy(small_policy(), "small")), max_tokens=50)
    asked = []
    with pytest.raises(EngineError, match="the reply was cancelled"):
        speaker.reply(Conversation(), "go north", stop=lambda: bool(asked.append(1)) or len(asked) == 2)
    assert speaker.reply(Conversation(), "go north").reply


class Bytes:
    """A dialect of bytes: a character of several bytes is several tokens."""

    def text(self, ids):
        return bytes(ids).decode("utf-8", "replace")


@pytest.mark.parametrize("text", ["go", "caf\u00e9 \u2615!", "\U0001f40d", "a\ufffdb", ""])
def test_pieces_end_where_characters_end(text):
    ids = tuple(text.encode())
    pieces = _split_reply(Bytes(), ids, np.full(len(ids), -0.5, np.float32), reply=text)
    assert "".join(piece.text for piece in pieces) == text
    assert sum(piece.logprob for piece in pieces) == pytest.approx(-0.5 * len(ids))
    if "\ufffd" not in text:
        assert [piece.text for piece in pieces] == list(text)
