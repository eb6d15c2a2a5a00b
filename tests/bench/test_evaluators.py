"""Evaluators against hand-worked numbers, against the model's own forward, and against data with mistakes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evolvent as ev
from evolvent.bench.evaluators import (
    ClassificationConfig,
    GenerationConfig,
    PerplexityConfig,
    SuccessConfig,
    _f1_measures,
    _iterate_windows,
    _token_f1,
    measure_classification,
    measure_generation,
    measure_perplexity,
    measure_success,
)
from evolvent.bench.measures import Measure, mean_measure
from evolvent.bench.questions import (
    ChoiceQuestion,
    Conversation,
    OpenQuestion,
    Text,
    read_choices,
    read_questions,
    read_texts,
)
from evolvent.engine.asks import Continuation, Finished, ScoreAsk, Scored
from evolvent.engine.fitting import engine_for
from evolvent.errors import ConfigError, EngineError, VocabularyMismatch
from evolvent.models.policy import Policy
from evolvent.stats import wilson_interval
from tests.bench.small_policies import small_policy

LN2 = math.log(2)


@pytest.fixture(scope="module")
def policy():
    return small_policy(seed=3)


# ---------------------------------------------------------------------- an engine whose numbers are known


@dataclass
class Table:
    """Answers from a table: every token has one probability wherever it stands; greedy texts are given."""

    chances: dict[int, float] = field(default_factory=dict)
    texts: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    context: int = 64

    def __post_init__(self):
        self.version, self.usage, self.asked, self.open = 0, None, [], []

    def submit(self, ask):
        self.asked.append(ask)
        self.open.append(ask)
        return len(self.asked) - 1

    def poll(self):
        first = len(self.asked) - len(self.open)
        done = [Finished(first + at, self.answer(ask)) for at, ask in enumerate(self.open)]
        self.open = []
        return done

    def answer(self, ask):
        if isinstance(ask, ScoreAsk):
            values = [math.log(self.chances.get(int(token), 0.1)) for token in ask.tokens]
            if ask.node is None:
                values[0] = 0.0
            return Scored("node", np.array(values, np.float32))
        ids = self.texts[tuple(ask.tokens)]
        return tuple(
            Continuation("node", np.array(ids, np.int32), np.zeros(len(ids), np.float32), "stop") for _ in ask.seeds
        )

    def cancel(self, tickets):
        pass

    def pending(self):
        return len(self.open)


def ids_of(policy, words):
    return [policy.tokenizer.get_vocab()[word] for word in words.split()]


def by_name(measures):
    return {measure.metric: measure for measure in measures}


# ---------------------------------------------------------------------- perplexity


def test_perplexity_is_that_of_all_tokens_and_no_mean_of_means(policy):
    """One token of chance 1/2, three of 1/4: exp((ln 2 + 3 ln 4) / 4) = 2^1.75. The mean of both texts would be 3."""
    lamp, key = ids_of(policy, "lamp key")
    engine = Table({lamp: 0.5, key: 0.25})
    (found,) = measure_perplexity(policy, [Text("lamp"), Text("key key key")], engine=engine)
    assert found.metric == "perplexity" and found.n == 4
    assert found.value == pytest.approx(2**1.75, rel=1e-6)
    assert 1.0 == found.low <= found.value <= found.high, "two texts tell little, but no perplexity is below 1"


def test_the_interval_draws_whole_texts(policy):
    lamp, key = ids_of(policy, "lamp key")
    one = measure_perplexity(policy, [Text("lamp key")], engine=Table({lamp: 0.5, key: 0.25}))[0]
    assert (one.low, one.high, one.n) == (None, None, 2), "of one text nothing can be said"
    same = measure_perplexity(policy, [Text("lamp key")] * 8, engine=Table({lamp: 0.5, key: 0.25}))[0]
    assert same.low == pytest.approx(same.high) == pytest.approx(2**1.5), "tokens differ, texts do not"
    again = measure_perplexity(policy, [Text("lamp"), Text("key")] * 30, engine=Table({lamp: 0.5, key: 0.25}))[0]
    assert 2 < again.low < again.value < again.high < 4
    assert (
        again == measure_perplexity(policy, [Text("lamp"), Text("key")] * 30, engine=Table({lamp: 0.5, key: 0.25}))[0]
    )


def test_a_hopeless_model_is_infinitely_perplexed(policy):
    (lamp,) = ids_of(policy, "lamp")
    assert measure_perplexity(policy, [Text("lamp")], engine=Table({lamp: 1e-310}))[0].value == math.inf


def own_losses(policy, ids):
    """-log p of every token but the first, by the model's own forward."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0].double()
    return -logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def test_perplexity_of_a_real_policy(policy):
    texts = ["you see a lamp", "go north", "take key take door drop key"]
    losses = np.concatenate([own_losses(policy, [1, *ids_of(policy, text)]) for text in texts])
    (found,) = measure_perplexity(policy, list(map(Text, texts)))
    assert found.n == len(losses) == 12
    assert found.value == pytest.approx(math.exp(losses.mean()), rel=1e-5)


def test_a_text_longer_than_the_context_is_read_in_windows(policy):
    """Each token is predicted once, with at least half a context before it (after the first window)."""
    rng = np.random.default_rng(0)
    words = [word for word in policy.tokenizer.get_vocab() if word.isalpha()]
    text = " ".join(rng.choice(words, 150))
    ids = [1, *ids_of(policy, text)]
    losses = [*own_losses(policy, ids[:64])]
    for end in (96, 128, 151):
        losses += [*own_losses(policy, ids[end - 64 : end])[-min(32, end - 128 if end > 128 else 32) :]]
    (found,) = measure_perplexity(policy, [Text(text)])
    assert found.n == 150 == len(losses)
    assert found.value == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    finer = measure_perplexity(policy, [Text(text)], PerplexityConfig(stride=5))[0]
    assert finer.n == 150 and finer.value != found.value


@given(st.integers(0, 300), st.integers(2, 80), st.integers(1, 100))
def test_windows_cover_every_token_once(length, context, stride):
    seen = []
    for begin, after, end in _iterate_windows(length, context, stride):
        assert 0 <= begin <= after < end and end - begin <= context
        assert after == 0 or after - begin >= 1, "a new token has something before it"
        seen += range(after, end)
    assert seen == list(range(length))


def test_of_a_conversation_only_replies_are_predicted(policy):
    said = Conversation("", (("you see a lamp", "take lamp"), ("you see a door", "go north")))
    engine = Table(dict.fromkeys(ids_of(policy, "take lamp go north"), 0.5) | {2: 0.125})
    (found,) = measure_perplexity(policy, [said], engine=engine)
    assert found.n == 6, "two words and the stop token of each reply"
    assert found.value == pytest.approx(math.exp((4 * LN2 + 2 * 3 * LN2) / 6), rel=1e-6)


def test_of_parts_what_is_learned_is_predicted(policy):
    from evolvent.learn.token_sequences import flatten

    texts = [("you see a lamp", "take lamp"), ("you see a door", "go"), ("you see nothing", "go north")]
    played = [
        ev.Trajectory(f"t{at}", ev.Task("small", "1", {"n": at}), tuple(ev.Step(*pair) for pair in texts[at:]))
        for at in range(3)
    ]
    parts = flatten(played, policy.dialect, instructions=lambda task: "", context=64).sequences
    losses = np.concatenate([own_losses(policy, one.ids.tolist())[one.weight[1:] != 0] for one in parts])
    (found,) = measure_perplexity(policy, parts)
    assert found.n == len(losses) == (3 + 2 + 3) + (2 + 3) + 3
    assert found.value == pytest.approx(math.exp(losses.mean()), rel=1e-5)


def test_nothing_to_predict_is_an_error(policy):
    with pytest.raises(ConfigError, match="the texts contain no token to predict"):
        measure_perplexity(policy, [], engine=Table())


def test_a_word_that_the_policy_does_not_know_is_named(policy):
    with pytest.raises(VocabularyMismatch, match="zebra"):
        measure_perplexity(policy, [Text("you see a zebra")])


def test_a_model_that_diverged_is_named():
    broken = small_policy()
    with torch.no_grad():
        broken.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(EngineError, match="not finite"):
        measure_perplexity(broken, [Text("go north")])


# ---------------------------------------------------------------------- classification


def test_f1_by_hand():
    """Truths and predictions of 10 questions. a: tp 3, fp 1, fn 1; b: tp 2, fp 2, fn 1; c: tp 1, fn 2; d: fp 1."""
    counts = {("a", "a"): 3, ("a", "b"): 1, ("b", "b"): 2, ("b", "a"): 1, ("c", "c"): 1, ("c", "b"): 1, ("c", "d"): 1}
    found = by_name(_f1_measures(counts))
    assert found["f1/a"].value == pytest.approx(2 * 3 / (2 * 3 + 1 + 1))
    assert found["f1/b"].value == pytest.approx(2 * 2 / (2 * 2 + 2 + 1))
    assert found["f1/c"].value == pytest.approx(2 * 1 / (2 * 1 + 0 + 2))
    assert found["f1/d"].value == 0.0 and found["f1/d"].n == 0
    assert found["precision/b"].value == pytest.approx(2 / 4) and found["recall/b"].value == pytest.approx(2 / 3)
    assert found["precision/d"].value == found["recall/d"].value == 0.0
    macro = found["macro_f1"]
    assert macro.value == pytest.approx((6 / 8 + 4 / 7 + 2 / 4 + 0) / 4) and macro.n == 10
    assert 0 <= macro.low < macro.value < macro.high <= 1


def test_the_interval_of_macro_f1_is_that_of_questions_drawn_again():
    """Against a bootstrap written out question by question."""
    counts = {("a", "a"): 12, ("a", "b"): 5, ("b", "b"): 9, ("b", "a"): 4}
    questions = [pair for pair, count in counts.items() for _ in range(count)]

    def macro(pairs):
        labels = sorted({label for pair in pairs for label in pair})
        each = []
        for label in labels:
            tp = sum(truth == guess == label for truth, guess in pairs)
            each.append(2 * tp / (sum(t == label for t, _ in pairs) + sum(g == label for _, g in pairs)))
        return sum(each) / len(each)

    rng = np.random.default_rng(1)
    drawn = [macro([questions[i] for i in rng.integers(0, len(questions), len(questions))]) for _ in range(1500)]
    found = by_name(_f1_measures(counts))["macro_f1"]
    assert found.value == pytest.approx(macro(questions))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.025)


def test_the_likeliest_choice_is_taken(policy):
    """ "lamp" is likelier than "key"; "key" twice is less likely, but its mean is as good as once."""
    lamp, key, door = ids_of(policy, "lamp key door")
    chances = {lamp: 0.2, key: 0.9, door: 0.4, 2: 0.5}
    data = [
        ChoiceQuestion("you see", ("lamp", "key"), 1),
        ChoiceQuestion("you see", ("lamp", "key"), 0),
        ChoiceQuestion("you see", ("key", "lamp"), 0),
        ChoiceQuestion("go", ("lamp", "key"), 1),
    ]
    found = by_name(measure_classification(policy, data, engine=Table(chances)))
    assert found["accuracy"] == Measure(
        "accuracy", 0.75, *[getattr(wilson_interval(3, 4), e) for e in ("low", "high")], 4
    )
    assert found["recall/key"].value == 1.0 and found["recall/lamp"].value == 0.0
    assert found["macro_f1"].value == pytest.approx((2 * 3 / (2 * 3 + 1) + 0) / 2)
    longer = [ChoiceQuestion("you see", ("door", " ".join(["key"] * 10)), 1)]
    guesses = [
        by_name(measure_classification(policy, longer, ClassificationConfig(score=score), engine=Table(chances)))
        for score in ("sum", "mean")
    ]
    assert [one["accuracy"].value for one in guesses] == [0.0, 1.0], ".9^10 < .4, but its mean is higher"


def test_classes_are_places_where_choices_differ(policy):
    lamp, key, door = ids_of(policy, "lamp key door")
    data = [ChoiceQuestion("you see", ("lamp", "key"), 1), ChoiceQuestion("you see", ("door", "key"), 0)]
    found = by_name(measure_classification(policy, data, engine=Table({lamp: 0.1, key: 0.9, door: 0.1, 2: 0.5})))
    assert {name for name in found if name.startswith("f1/")} == {"f1/1", "f1/2"}
    assert found["recall/2"].value == 1.0 and found["recall/1"].value == 0.0


def test_of_equal_scores_the_first_is_taken(policy):
    found = by_name(measure_classification(policy, [ChoiceQuestion("go", ("lamp", "key"), 1)], engine=Table()))
    assert found["accuracy"].value == 0.0 and found["macro_f1"].low is None


@pytest.mark.parametrize("form", ["dialect", "text"])
def test_choices_of_a_real_policy(policy, form):
    """The same choices as by the log-probabilities of whole texts, each computed by the model's own forward."""
    rng = np.random.default_rng(2)
    words = [word for word in policy.tokenizer.get_vocab() if word.isalpha()]
    data = []
    for _ in range(12):
        prompt = " ".join(rng.choice(words, 5)) + (" " if form == "text" else "")
        choices = tuple({" ".join(rng.choice(words, rng.integers(1, 4))): None for _ in range(3)})
        data.append(ChoiceQuestion(prompt, choices, 0))
    right = 0
    for one in data:
        scores = []
        for choice in one.choices:
            if form == "dialect":
                ids = [*policy.dialect.open("", one.prompt), *policy.dialect.action(choice)]
                new = len(policy.dialect.action(choice))
            else:
                ids, new = [1, *ids_of(policy, one.prompt + choice)], len(choice.split())
            scores.append(-own_losses(policy, ids)[-new:].sum())
        right += scores.index(max(scores)) == 0
    found = by_name(measure_classification(policy, data, ClassificationConfig(form=form)))
    assert found["accuracy"].value == pytest.approx(right / len(data)) and 0 < right < len(data)


def test_bare_texts_share_no_token_that_the_choice_changes():
    """A byte tokenizer: what is scored begins where the texts differ from the prompt, whatever merges there."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from evolvent.bench.evaluators import _split_continuations
    from evolvent.models.dialects import dialect_for

    vocabulary = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4, "ab": 5, "ac": 6}
    core = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("a", "c")]))
    core.pre_tokenizer = pre_tokenizers.Split("|", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    policy = Policy(None, tokenizer, dialect_for(tokenizer, "lines"))
    config = ClassificationConfig(form="text")
    assert _split_continuations(policy, ChoiceQuestion("ca", ("b", "c"), 0), config) == ([0, 4], [[5], [6]])
    assert _split_continuations(policy, ChoiceQuestion("cb", ("b", "c"), 0), config) == ([0, 4, 3], [[3], [4]])


# ---------------------------------------------------------------------- generation


def test_generation_by_hand(policy):
    """Two of three exact; token F1 of "take lamp" against "take key": 1 shared of 2 and 2: 1/2."""
    prompts = ["you see a lamp", "you see a key", "you see a door"]
    words = ["take lamp", "take lamp", "go north"]
    opened = [tuple(policy.dialect.open("", prompt)) for prompt in prompts]
    engine = Table(texts={key: policy.dialect.action(text) for key, text in zip(opened, words, strict=True)})
    data = [
        OpenQuestion(prompts[0], ("drop lamp", "take lamp")),
        OpenQuestion(prompts[1], ("take key",)),
        OpenQuestion(prompts[2], ("Go, north!",)),
    ]
    found = by_name(measure_generation(policy, data, engine=engine))
    assert found["exact_match"].value == pytest.approx(2 / 3) and found["exact_match"].n == 3
    assert found["token_f1"].value == pytest.approx((1 + 0.5 + 1) / 3)
    strict = by_name(measure_generation(policy, data, GenerationConfig(normalise=False), engine=engine))
    assert strict["exact_match"].value == pytest.approx(1 / 3)
    many = by_name(measure_generation(policy, data, GenerationConfig(samples=3, temperature=1.0), engine=engine))
    assert many["exact_match"].value == pytest.approx(2 / 3) and many["exact_match"].n == 3
    seeds = [ask.seeds for ask in engine.asked[-3:]]
    assert len({seed for each in seeds for seed in each}) == 9


@pytest.mark.parametrize(
    ("text", "reference", "f1"),
    [("", "", 1.0), ("", "x", 0.0), ("x", "", 0.0), ("x x y", "x y y", 2 / 3), ("a b", "c", 0.0), ("a", "a b c", 0.5)],
)
def test_token_f1(text, reference, f1):
    assert _token_f1(text, reference) == pytest.approx(f1)


def test_generation_of_a_real_policy_is_its_greedy_text(policy):
    ids = policy.dialect.open("", "you see a lamp")
    with torch.no_grad():
        for _ in range(6):
            ids.append(int(policy.model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in policy.dialect.stop_ids:
                break
    text = policy.dialect.text(ids[len(policy.dialect.open("", "you see a lamp")) :])
    config = GenerationConfig(max_tokens=6, normalise=False)
    found = by_name(measure_generation(policy, [OpenQuestion("you see a lamp", (text,))] * 2, config))
    assert found["exact_match"].value == found["token_f1"].value == 1.0
    sampled = GenerationConfig(max_tokens=6, temperature=1.0, samples=4, seed=1)
    question = [OpenQuestion("you see a lamp", ("take lamp", "go")), OpenQuestion("you see a key", ("drop",))]
    assert measure_generation(policy, question, sampled) == measure_generation(policy, question, sampled)


def test_bare_text_ends_at_the_stop(policy):
    lamp, key = ids_of(policy, "lamp key")
    engine = Table(texts={(1, lamp): [key, lamp, key]})
    config = GenerationConfig(form="text", stop=(" lamp", "door"), normalise=False)
    found = by_name(measure_generation(policy, [OpenQuestion("lamp", ("key",))], config, engine=engine))
    assert found["exact_match"].value == 1.0
    assert engine.asked[0].stop_strings == (" lamp", "door") and engine.asked[0].stop_ids == frozenset([2])


def test_a_question_that_does_not_fit_is_named(policy):
    data = [OpenQuestion("go", ("x",)), OpenQuestion(" ".join(["lamp"] * 70), ("x",))]
    with pytest.raises(ConfigError, match=r"question 2: 1 of 2 questions .*got 74 tokens, expected at most 64"):
        measure_generation(policy, data)
    with pytest.raises(ConfigError, match="question 1"):
        measure_classification(policy, [ChoiceQuestion(" ".join(["lamp"] * 63), ("go", "take"), 0)])
    for evaluate in (measure_generation, measure_classification):
        with pytest.raises(ConfigError, match="the question list is empty"):
            evaluate(policy, [])


# ---------------------------------------------------------------------- worlds


class Doors(ev.TextWorld):
    """Say `go`; the words of the small policy are enough."""

    name, horizon, instructions = "doors", 2, ""

    def specs(self):
        return [{"number": n} for n in range(80)]

    def play(self, spec):
        said = yield "you see a door"
        return float(said != "drop key")

    def expert(self, task):
        return ["go"]


def test_success_in_a_world(policy):
    found = measure_success(policy, {"doors": Doors()}, SuccessConfig(limit=10, max_tokens=3, split="train"))
    (row,) = found
    assert row.metric.startswith("success/doors/") and row.n == 10 and 0 <= row.low <= row.value <= row.high <= 1
    assert found == measure_success(
        policy,
        {"doors": Doors()},
        SuccessConfig(limit=10, max_tokens=3, split="train"),
        engine=engine_for(policy, slots=3),
    )
    with pytest.raises(ConfigError, match="unknown tier"):
        measure_success(policy, {"doors": Doors()}, SuccessConfig(tiers=("evoo",)))


# ---------------------------------------------------------------------- what they share


def test_the_engine_that_fits_the_model(policy):
    assert type(engine_for(policy)).__name__ == "LocalEngine"
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=len(policy.tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        intermediate_size=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4},
        head_dim=8,
        max_position_embeddings=64,
    )
    sliding = Policy(MistralForCausalLM(config).eval(), policy.tokenizer, policy.dialect)
    assert type(engine_for(sliding)).__name__ == "RecomputeEngine"
    text = "you see a lamp you see a key"
    losses = own_losses(sliding, [1, *ids_of(policy, text)])
    assert measure_perplexity(sliding, [Text(text)])[0].value == pytest.approx(math.exp(losses.mean()), rel=1e-5)


def test_an_interval_of_few_texts_keeps_to_what_is_possible():
    found = mean_measure(np.array([1.0, 1.0, 0.0]), np.arange(3), "x", upper=1.0)
    assert (found.low, found.high) == (0, 1) and found.value == pytest.approx(2 / 3)


def test_many_texts_are_drawn_in_blocks():
    values = np.random.default_rng(0).normal(1.0, 1.0, 3000)
    found = mean_measure(values, np.arange(3000), "x")
    assert found.value == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * values.std() / math.sqrt(3000), rel=0.15)


# ---------------------------------------------------------------------- data


def written(tmp_path, *rows):
    path = tmp_path / "data.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_data_is_read(tmp_path):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
    ]
    texts = read_texts(written(tmp_path, {"text": "one\u2028two"}, "", {"messages": messages, "id": "x"}))
    assert texts == [Text("one\u2028two"), Conversation("be brief", (("hi", "ho"),))]
    row = {"prompt": "p", "choices": ["a", "b"]}
    choices = read_choices(written(tmp_path, {**row, "answer": 1}, {**row, "answer": "a"}))
    assert choices == [ChoiceQuestion("p", ("a", "b"), 1), ChoiceQuestion("p", ("a", "b"), 0)]
    rows = [{"prompt": "p", "reference": "r"}, {"prompt": "p", "references": ["r", "s"]}]
    assert read_questions(written(tmp_path, *rows)) == [OpenQuestion("p", ("r",)), OpenQuestion("p", ("r", "s"))]


@pytest.mark.parametrize(
    ("read", "row", "told"),
    [
        (read_texts, "{", "not valid JSON:"),
        (read_texts, "[" * 100_000, "not valid JSON:"),
        (read_texts, "[1]", "not a JSON object"),
        (read_texts, {"txt": "a"}, "unknown key 'txt'. Did you mean 'text'?"),
        (read_texts, {"text": ""}, "is not text"),
        (read_texts, {"text": "a", "messages": []}, "set exactly one of text and messages"),
        (read_texts, {"messages": "hi"}, "messages do not form a conversation"),
        (read_texts, {"messages": [{"role": "robot", "content": "x"}]}, "the message has no known role"),
        (read_texts, {"messages": [{"role": "user", "content": "x"}]}, "got user, expected an optional system message"),
        (read_choices, {"prompt": "p", "choices": ["a"], "answer": 0}, "list of 2 or more texts"),
        (read_choices, {"prompt": "p", "choices": ["a", "a"], "answer": 0}, "same text"),
        (read_choices, {"prompt": "p", "choices": ["a", "b"], "answer": 2}, "0 to 1"),
        (read_choices, {"prompt": "p", "choices": ["a", "b"], "answer": True}, "0 to 1"),
        (read_choices, {"prompt": "p", "choices": ["a", "b"]}, "got missing"),
        (read_choices, {"prompt": 3, "choices": ["a", "b"], "answer": 0}, "is not text"),
        (read_questions, {"prompt": "p"}, "set exactly one of reference and references"),
        (read_questions, {"prompt": "p", "references": []}, "list of 1 or more texts"),
    ],
)
def test_mistakes_are_named_by_their_line(tmp_path, read, row, told):
    good = {
        read_texts: {"text": "a"},
        read_choices: {"prompt": "p", "choices": ["a", "b"], "answer": 0},
        read_questions: {"prompt": "p", "reference": "r"},
    }[read]
    path = written(tmp_path, good, row, good)
    with pytest.raises(ConfigError) as caught:
        read(path)
    (problem,) = caught.value.problems
    assert problem.where == f"{path}:2" and told in problem.what


def test_all_mistakes_of_a_file_at_once(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_texts(written(tmp_path, *["{"] * 30))
    assert len(caught.value.problems) == 21 and "10 more lines" in str(caught.value.problems[-1])
    with pytest.raises(ConfigError, match="has no lines"):
        read_texts(written(tmp_path, ""))
    with pytest.raises(ConfigError, match="No such file"):
        read_texts(tmp_path / "none.jsonl")
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_texts(tmp_path / "latin")
