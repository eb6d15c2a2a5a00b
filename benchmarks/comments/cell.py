"""One cell of `benchmarks.comments`: a model configuration, an arm of comment augmentation, and a seed.

A generator learns from instruction pairs of few problems: requests and programs in both forms of `comments_suites`, and
code and its comments (or SKIP for code of low value). It then comments a larger corpus of bare code, a part of which is
of low value. Every arm goes on from that generator and learns as many tokens: of the corpus as it is, filtered,
commented, or both. Among it lie, in every arm, the requests and programs of the generator's own pairs: taught code
alone, models this small forget how to be asked (in a pilot two arms fell from 13 % to 1 %). So the arm "commented +
filtered" learns nothing that the generator has not learned or written itself.

Arms are `methods.comments`, density apart: there notes that the generator wrote are left out, drawn by name, until the
corpus has the density that is asked for. Measured is the share of problems of held-out compositions whose greedy answer
passes its tests in a box (`worlds.code`), in the forms of HumanEval and MBPP, without further instructions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from benchmarks.comments.suites import FORMS, Problem, low_value, problems, reply, source, write_suite
from benchmarks.looking_back import look_back
from benchmarks.search_heads import look_alike
from evolvent.agents.language import LanguageAgent
from evolvent.curate.commenting import Commenting, CommentResult, Source, find_faults
from evolvent.curate.comments import add_comments, density
from evolvent.curate.notes import format_request
from evolvent.engine.asks import GREEDY
from evolvent.engine.local import LocalEngine
from evolvent.errors import ScoringError
from evolvent.identity import version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.rows import ReadingConfig, conversation_sequence, read_rows
from evolvent.learn.token_sequences import TokenSequence
from evolvent.messages import Message
from evolvent.methods.comments import (
    COMMENTED,
    COMMENTED_FILTERED,
    FILTERED_RAW,
    RAW,
    CommentsConfig,
    build_training_pairs,
    comment_sources,
    comments,
)
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import CONTROL_WORDS, init_tiny, tiny_config
from evolvent.rollout.episode import collect
from evolvent.run import Run
from evolvent.scale.local_backend import LocalBackend
from evolvent.trajectory import Start, canonical_json, sample_seed
from evolvent.worlds.code.rows import read_code_row
from evolvent.worlds.code.world import Code

__all__ = ["ARMS", "DENSITIES", "MAIN", "MODELS", "Cell", "Protocol", "panel", "run_cell", "thinned"]

ARMS: Mapping[str, Mapping[str, object]] = {
    "raw": RAW,
    "filtered raw": FILTERED_RAW,
    "commented": COMMENTED,
    "commented + filtered": COMMENTED_FILTERED,
}
DENSITIES: Mapping[str, float] = {"density 0.1": 0.1, "density 0.2": 0.2, "density 0.3": 0.3}
MAIN = ("generator", *ARMS)
MODELS: Mapping[str, Mapping[str, int]] = {
    "96 x 3": {"hidden_size": 96, "num_hidden_layers": 3, "intermediate_size": 288},
    "96 x 4": {"hidden_size": 96, "num_hidden_layers": 4, "intermediate_size": 288},
    "128 x 3": {"hidden_size": 128, "num_hidden_layers": 3, "intermediate_size": 384},
}
"""Width and depth of Llamas of 420,000 to 720,000 weights, four heads each."""
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% else %}{{ '\\n' }}{% endif %}{% endfor %}"
)
# A line's number and mark, then its indentation; words and signs with the blank before them. A digit is one token
# wherever it stands: whoever says what `xs[:3]` is for copies it.
_PIECES = r"\n|(?<=\|) (?=    )| {4}| ?[A-Za-z_]+|\d| ?[^\w\s]| "
_WORDS, _TOLD_TO = 600, 300  # of the tokenizer; problems that it is made from


@dataclass(frozen=True)
class Protocol:
    """All that the benchmark fixes before it runs.

    Args:
        seeds: of the weights, the problems of the pairs and of the corpus.
        pairs: problems that the generator learns from. pair_tokens: its learned tokens. skips: the share of SKIP among
            what it learns to say of code.
        corpus: functions to comment. low: pieces of low value among them. tokens: learned tokens of every arm.
        panel: held-out problems; each is asked in both forms. temperature: of the generator's comments.
        generator, train: how the generator and how the arms learn.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    pairs: int = 1200
    pair_tokens: int = 500_000
    skips: float = 0.1
    corpus: int = 1200
    low: int = 400
    tokens: int = 200_000
    panel: int = 150
    temperature: float = 0.0
    context: int = 320
    max_tokens: int = 110
    generator: TrainConfig = field(default_factory=lambda: TrainConfig(lr=4e-3, batch_tokens=768, warmup_steps=20))
    train: TrainConfig = field(default_factory=lambda: TrainConfig(lr=2e-3, batch_tokens=1024, warmup_steps=10))

    @property
    def digest(self) -> str:
        """16 hex digits: cells of another protocol are not mixed with these."""
        own = asdict(replace(self, generator=None, train=None))  # type: ignore[arg-type]
        own |= {name: version_1_values(getattr(self, name)) for name in ("generator", "train")}
        own |= {"models": {name: dict(more) for name, more in MODELS.items()}, "arms": [*MAIN, *DENSITIES]}
        return f"{sample_seed(canonical_json(own)):016x}"


@dataclass(frozen=True, order=True)
class Cell:
    """A model, an arm, a seed."""

    model: str
    arm: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.model}-{self.arm}-{self.seed}".replace(" ", "_").replace("+", "and")


class Suite(Code):
    """The problems of a file, asked without instructions: the prompt is all that is read."""

    instructions = ""


# ----------------------------------------------------------------------------------------------- words and models
@cache
def tokenizer(context: int) -> PreTrainedTokenizerFast:
    """Byte pairs within pieces that never reach over a line's end, learned from training problems; reads any text."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_PIECES), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        _texts(),
        trainers.BpeTrainer(
            vocab_size=_WORDS,
            special_tokens=[*CONTROL_WORDS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    core.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", CONTROL_WORDS.index("<bos>"))]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = _TEMPLATE
    return made


def _texts() -> list[str]:
    made = problems("train", _TOLD_TO, seed=-1)
    shown = [format_request(one.program, "python") for one in made] + [one.text for one in low_value(40, seed=-1)]
    for one in made:
        shown += [_prompt(one, form) for form in FORMS]
        shown.append(source(one, "", noted=True).text)
    return shown


def untrained(protocol: Protocol, model: str, seed: int) -> Policy:
    """A fresh policy of a configuration, with heads that look back and alike: copying is half of the task."""
    words = tokenizer(protocol.context)
    shape = tiny_config(len(words), "xs", context=protocol.context).to_dict() | dict(MODELS[model])
    shape.pop("head_dim", None)
    made = init_tiny(LlamaConfig(**shape), seed=sample_seed("comments model", model, seed) % 2**31)
    policy = Policy(made, words, dialect_for(words, "chat"))
    look_back(policy)
    look_alike(policy)
    return policy


# --------------------------------------------------------------------------------------------------- what is learned
def panel(protocol: Protocol, split: str = "test") -> tuple[Problem, ...]:
    """The held-out problems: the same for all cells, none of a composition that was learned."""
    return problems(split, protocol.panel, seed=0)


def _prompt(problem: Problem, form: str) -> str:
    return read_code_row(problem.row(form, 0), "", 0).text


def pairs(protocol: Protocol, policy: Policy, seed: int) -> list[TokenSequence]:
    """What the generator learns: requests and programs in both forms, code and its comments, low value and SKIP."""
    made = problems("train", protocol.pairs, seed=seed)
    shown = [source(one, f"noted/{number}", noted=True) for number, one in enumerate(made)]
    low = low_value(protocol.pairs // 4, seed=-1 - seed)
    return [
        *requests(protocol, policy, seed),
        *build_training_pairs([*shown, *low], CommentsConfig(skips=protocol.skips), policy, seed=seed),
    ]


def requests(protocol: Protocol, policy: Policy, seed: int) -> list[TokenSequence]:
    """The pairs of requests and programs among them, in both forms."""
    return [
        conversation_sequence(
            f"{form}/{number}",
            [Message("user", _prompt(one, form)), Message("assistant", reply(one, form))],
            policy.dialect,
        )
        for form in FORMS
        for number, one in enumerate(problems("train", protocol.pairs, seed=seed))
    ]


def corpus(protocol: Protocol, seed: int) -> list[Source]:
    """Bare functions, none of them in the pairs, and pieces of low value."""
    made = problems("train", protocol.pairs + protocol.corpus, seed=seed)[protocol.pairs :]
    known = {one.program for one in problems("train", protocol.pairs, seed=seed)}
    bare = [source(one, f"bare/{number}", noted=False) for number, one in enumerate(made) if one.program not in known]
    return [*bare, *low_value(protocol.low, seed=seed)]


def thinned(every: Sequence[CommentResult], share: float, *, seed: int) -> list[str]:
    """The texts with so many of their notes, drawn by name, that comments are this share of all characters, or less."""
    told = [
        (sample_seed(seed, one.source.id, place), at, place)
        for at, one in enumerate(every)
        for place in range(len(one.notes))
    ]
    letters, notes = sum(len(one.source.text) for one in every), 0
    marks = sum(density(one.source.text, one.source.language).comment_chars for one in every)
    kept: dict[int, list[int]] = {}
    for _, at, place in sorted(told):
        own = len(every[at].notes[place].text) + 2  # with the mark and a blank; a line's end and indentation are code
        more = own + 1 + _indentation(every[at], place)
        if marks + own > share * (letters + more):
            break
        marks, letters, notes = marks + own, letters + more, notes + 1
        kept.setdefault(at, []).append(place)
    return [
        add_comments(
            one.source.text, [one.notes[place] for place in sorted(kept.get(at, ()))], one.source.language
        ).source
        for at, one in enumerate(every)
    ]


def _indentation(one: CommentResult, place: int) -> int:
    line = one.source.text.split("\n")[one.notes[place].line - 1]
    return len(line) - len(line.lstrip(" "))


# ------------------------------------------------------------------------------------------------------- the cells
def run_cell(protocol: Protocol, folder: Path, cell: Cell, *, split: str = "test") -> dict[str, Any]:
    """Make the generator and its comments (once for all arms of a model and seed), learn, measure; can be resumed."""
    began = time.process_time()
    place = folder / "runs" / f"{protocol.digest}-{cell.model}-{cell.seed}".replace(" ", "")
    start = untrained(protocol, cell.model, cell.seed)
    verbs = _verbs(protocol, protocol.generator)
    with Run(place / "generator", verbs, seed=cell.seed, settings=verbs.settings()) as run:
        learned = run.fit(start, pairs(protocol, start, cell.seed), weighted_nll, tokens=protocol.pair_tokens)
    about: dict[str, Any] = {}
    if cell.arm != "generator":
        verbs = _verbs(protocol, protocol.train)
        with Run(place / "arms", verbs, seed=cell.seed, settings=verbs.settings()) as run:
            learned, about = _arm(protocol, cell, learned, run=run.arm(cell.arm.replace(" ", "")))
    right, generated = measured(protocol, learned, folder, split=split)
    return {
        **asdict(cell),
        "digest": protocol.digest,
        "right": right,
        "generated": generated,
        "corpus": about,
        "learned_tokens": 0 if cell.arm == "generator" else protocol.tokens,
        "parameters": learned.parameters(),
        "cpu_s": round(time.process_time() - began, 1),
    }


def _verbs(protocol: Protocol, train: TrainConfig) -> LocalBackend:
    return LocalBackend({"commenting": Commenting()}, train, slots=128, max_tokens=protocol.max_tokens)


def _arm(protocol: Protocol, cell: Cell, generator: Policy, *, run: Run[Policy]) -> tuple[Policy, dict[str, Any]]:
    """The policy of an arm, and what became of the corpus."""
    sources, beside = corpus(protocol, cell.seed), requests(protocol, generator, cell.seed)
    config = CommentsConfig.model_validate(
        {
            "teach": False,
            "tokens": protocol.tokens,
            "temperature": protocol.temperature,
            **ARMS.get(cell.arm, COMMENTED_FILTERED),
        }
    )
    about: dict[str, Any] = {}
    if cell.arm in ARMS:
        learned = comments(generator, sources, config=config, run=run, extra_sequences=beside)
        about = json.loads((run.folder / "comments.json").read_text(encoding="utf-8"))[-1]
        if not (config.augment and config.filter):
            return learned, about
    every = comment_sources(sources, generator, run=run, temperature=protocol.temperature)
    kept = [one for one in every if not find_faults(one, config.limits)]
    if cell.arm in ARMS:
        return learned, {**about, "density": _density([one.text for one in kept])}
    texts = thinned(kept, DENSITIES[cell.arm], seed=cell.seed)
    rows = ((one.source.id, {"text": text}) for one, text in zip(kept, texts, strict=True))
    parts = list(read_rows(rows, generator, ReadingConfig(kind="text", overlong="split")))
    learned = run.fit(generator, [*parts, *beside], weighted_nll, tokens=protocol.tokens)
    return learned, {"sources": len(every), "kept": len(kept), "density": _density(texts)}


def _density(texts: Sequence[str]) -> float:
    found = [density(text, "python") for text in texts]
    return round(sum(one.comment_chars for one in found) / sum(one.chars for one in found), 4)


def measured(
    protocol: Protocol, policy: Policy, folder: Path, *, split: str = "test"
) -> tuple[dict[str, list[int]], int]:
    """Form -> whether each problem is solved by the greedy answer, in the order of the panel; and generated tokens."""
    agent, engine = LanguageAgent(policy, GREEDY, max_tokens=protocol.max_tokens), LocalEngine(policy, slots=64)
    made, right = panel(protocol, split), dict[str, list[int]]()
    for form in FORMS:
        path = write_suite(folder / "suites" / protocol.digest, form, split, made)
        world = Suite(path)
        tasks = world.tasks(split, "all")
        played = {one.task.id: one for one in collect({"code": world}, [*map(Start, tasks)], agent, engine=engine)}
        world.close()
        won = [played[one.id].success for one in tasks]
        if None in won or len(won) != len(made):
            raise ScoringError("problems that could not be scored", value=won.count(None), expected=len(made))
        right[form] = [int(bool(each)) for each in won]
    return right, engine.usage.generated
