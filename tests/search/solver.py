"""A small model with an open vocabulary that has learned how rStar's prompts are answered, and seldom what is right."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import evolvent as ev
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config
from evolvent.search.rstar_prompts import Solution, Step, build_prompt
from evolvent.trajectory import Step as Turn
from evolvent.worlds.reasoning.arithmetic import Arithmetic

CONTEXT = 320


class Told(Arithmetic):
    """Arithmetic whose tasks are told by rStar's prompts alone."""

    instructions = ""


def lessons(world: Arithmetic, task: ev.Task) -> list[tuple[str, str]]:
    """Prompts of all kinds for a task, with replies; and the world's own question with a response."""
    question = world.question(task)
    first, last = question.rationale[0], question.rationale[-1]
    left, _, result = first.partition(" = ")
    done = f"The answer is {question.answer}."
    begun, asked = Solution(question.text), f"what is {left}?"
    thought = Solution(question.text, (Step("A1", first),))
    told = Solution(question.text, (Step("A3", result, asked),))
    rest = "; ".join(question.rationale)
    return [
        (build_prompt(begun, "A1"), first),
        (build_prompt(thought, "A1"), f"{last}. {done}"),
        (build_prompt(begun, "A2"), f"{rest}. {done}"),
        (build_prompt(thought, "A2"), f"{last}. {done}"),
        (build_prompt(begun, "A3"), f"{asked}\nAnswer: {result}"),
        (build_prompt(told, "A2"), f"{last}. {done}"),
        (build_prompt(told, "A4"), result),
        (build_prompt(begun, "A5"), question.text),
        (question.text, f"{' ; '.join(question.rationale)} ### {question.answer}"),
    ]


def solver(folder: Path, *, tokens: int = 5000) -> Policy:
    """The model, trained for some seconds on five tasks; the same each time."""
    world = Told()
    tasks = [task for task in world.tasks("train", "seen") if len(world.question(task).rationale) == 2][:5]
    pairs = [(task, *pair) for task in tasks for pair in lessons(world, task)]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        sorted({text for _, *said in pairs for text in said}),
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["<eos>"],
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")
    untrained = Policy(
        init_tiny(tiny_config(len(tokenizer), context=CONTEXT), seed=0), tokenizer, dialect_for(tokenizer, "lines")
    )
    shown = [
        ev.Trajectory(f"lesson/{at}", task, (Turn(asked, said, 1.0),), "", "world", ev.Score(1.0, 1.0, True), at)
        for at, (task, asked, said) in enumerate(pairs)
    ]
    with ev.local_run(folder, [world], train=ev.TrainConfig(lr=8e-3, batch_tokens=512)) as run:
        return run.fit(untrained, shown, ev.weighted_nll, tokens=tokens)
