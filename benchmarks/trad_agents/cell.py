"""What one cell of the study of remembering agents is: the model of a seed that plays a world as a system.

`benchmarks/trad_agents/lessons.py` has the prompts, `benchmarks.trad_agents` says which cells there are and compares
them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.trad_agents.lessons import (
    CODE_WORDS,
    COMMAND,
    SYSTEMS,
    TOKEN,
    UNSHOWN,
    WORLDS,
    Code,
    Coded,
    Lesson,
    Protocol,
    agent_config,
    drill,
    lessons,
    memory_of,
    panel,
    world_of,
)
from benchmarks.tuning.cell import sources
from evolvent.agents.prompts import PROMPT_VOCABULARY, Prompt
from evolvent.agents.writers import WriteRequest, writer_for
from evolvent.engine.driver import run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import ScoringError
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import TokenSequence
from evolvent.methods.trad import trad
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer
from evolvent.trajectory import Start, sample_rng, sample_seed
from evolvent.worlds.crafting import words_of

__all__ = ["Cell", "acts", "followed", "is_told", "learn_stages", "make_part", "play", "told_share", "trained"]

_LONGEST = 24  # tokens of an action
_WRITTEN = re.compile(r"> (?:think|act): ?(.*)")


@dataclass(frozen=True)
class Cell:
    """One system that plays one world with the model of one seed."""

    world: str
    system: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.world}-{self.system}-{self.seed}".replace(", ", "-").replace(" ", "_")


def make_part(
    lesson: Lesson, policy: Policy, code: Code, *, aside: float, name: str, thoughts: bool = True
) -> TokenSequence | None:
    """A lesson in a code as tokens; None where it is longer than the context."""
    prompt, answer = code.hide_lesson(lesson)
    read, written = policy.dialect.open("", prompt), policy.dialect.action(answer)
    weight = np.zeros(len(read) + len(written), np.float32)
    at = 2  # after the opening tokens
    for line in prompt.split("\n"):
        size = len(TOKEN.findall(line))
        if (said := _WRITTEN.fullmatch(line)) and (thoughts or line.startswith("> act")):
            weight[at + size - len(TOKEN.findall(said[1])) : at + size] = aside
        at += size
    weight[len(read) :] = 1.0
    ids = np.array([*read, *written], np.int32)
    if len(ids) > policy.context:
        return None
    nothing = np.zeros(len(ids), np.int32)
    return TokenSequence(name, ids, weight > 0, weight < 0, nothing.astype(np.float32), nothing, nothing - 1, weight)


def untrained(told: Protocol, seed: int) -> Policy:
    """A fresh model over the words of all worlds, of the prompts and of the codes."""
    known = {word for name in WORLDS for word in world_of(told, name).vocabulary() or ()}
    known |= {*CODE_WORDS, *(word for text in PROMPT_VOCABULARY for word in words_of(text))}
    tokenizer = word_tokenizer(sorted(known), context=told.context)
    config = tiny_config(len(tokenizer), told.size, context=told.context)
    config.rope_parameters = {"rope_type": "default", "rope_theta": told.rope_theta}  # prompts are longer than usual
    model = init_tiny(config, seed=sample_seed("trad", seed) % 2**31)
    return Policy(model, tokenizer, dialect_for(tokenizer, "words"))


def drilled(told: Protocol, policy: Policy, seed: int) -> Iterator[TokenSequence]:
    """The drills of a training: only what an earlier line tells is learned."""
    rng, nothing = sample_rng("trad drills", seed), Code({})
    words = sorted(word for name in WORLDS for word in world_of(told, name).vocabulary() or () if word.isalpha())
    for number in range(told.drills):
        part = make_part(drill(words, rng), policy, nothing, aside=1.0, name=f"drill-{number}", thoughts=False)
        if part is not None:
            yield part


def drawn_lessons(told: Protocol, policy: Policy, seed: int) -> Iterator[TokenSequence]:
    """Prompts of all systems in equal shares, each in another code. Pages are long, so the web has fewer of them."""
    rng = sample_rng("trad lessons", seed)
    shares = dict(zip(WORLDS, told.shares, strict=True))
    names = [(name, system) for name in WORLDS for system in SYSTEMS for _ in range(shares[name])]
    for number in range(told.lessons):
        name, system = names[number % len(names)]
        rows = [one for episode in lessons(told, name, system, "train") for one in episode]
        part = make_part(
            rows[int(rng.integers(len(rows)))],
            policy,
            Code.drawn(name, "lesson", seed, number),
            aside=told.aside,
            name=f"{name}-{system}-{number}",
        )
        if part is not None:
            yield part


def learn_stages(
    policy: Policy,
    stages: Sequence[tuple[str, Sequence[TokenSequence], float]],
    *,
    lr: float,
    batch_tokens: int,
    seed: int,
) -> tuple[Policy, dict[str, float]]:
    """Trains a policy on one stage after the other, and tells what that came to.

    Args:
        stages: of each its name, what is learned, and the share of the rate that is left at its end.

    Returns:
        the policy; tokens_read and updates of all stages, and loss, the mean of the last 20 updates.
    """
    read, updates, losses = 0, 0, list[float]()
    for name, parts, last in stages:
        config = TrainConfig(
            lr=lr, betas=(0.9, 0.95), batch_tokens=batch_tokens, epochs=1, warmup_steps=20, final_lr_ratio=last
        )
        learner = Learner(policy, weighted_nll, config, seed=sample_seed("trad order", name, seed) % 2**31)
        losses = []
        learner.fit(parts, on_update=lambda metrics, to=losses: to.append(float(metrics.loss)))  # type: ignore[misc]
        policy, read, updates = learner.policy.next_version(), read + sum(map(len, parts)), updates + learner.updates
    return policy, {"tokens_read": read, "updates": updates, "loss": float(np.mean(losses[-20:]))}


def trained(told: Protocol, seed: int) -> tuple[Policy, dict[str, float]]:
    """The model of a seed, which all systems share, and what its training came to."""
    began, policy = time.process_time(), untrained(told, seed)
    drills, asked = [*drilled(told, policy, seed)], [*drawn_lessons(told, policy, seed)]
    stages = [("drills", drills, 0.5), ("lessons", asked, 0.1)]
    policy, report = learn_stages(policy, stages, lr=told.lr, batch_tokens=told.batch_tokens, seed=seed)
    counts = {"drills": len(drills), "lessons": len(asked)}
    return policy, {**counts, **report, "cpu_train_s": round(time.process_time() - began, 1)}


def play(told: Protocol, policy: Policy, cell: Cell) -> dict[str, Any]:
    """Play the panel of a cell, and act once after each of the expert's own thoughts; the row to keep."""
    began, world = time.process_time(), world_of(told, cell.world)
    engine = LocalEngine(policy, slots=told.slots)
    code = Code.drawn(cell.world, "play", cell.seed)
    writer, config = Coded(writer_for(policy), code), agent_config(told, cell.world, cell.system)
    memory = None if cell.system == UNSHOWN else memory_of(told, cell.world)
    split = "dev" if cell.seed == told.development else "test"
    tasks = panel(told, cell.world, split)
    playing = trad(
        writer,
        [*map(Start, tasks)],
        config=config,
        worlds={world.name: world},
        memory=memory,
        engine=engine,
        seed=cell.seed,
    )
    played = {one.task.id: one for one in playing}
    if failed := [one.id for one in played.values() if one.success is None]:
        raise ScoringError("episodes that could not be scored", value=failed[:5])
    episodes = [played[one.id] for one in tasks]
    steps = [step for one in episodes for step in one.steps]
    read = [[int((~one.sampled).sum()) for one in step.generations] for step in steps]
    found = {
        "success": [float(bool(one.success)) for one in episodes],
        "unit": [float(one.score.unit or 0) for one in episodes],
        "kinds": [one.kind.split()[0] for one in tasks],
        "steps": len(steps),
        "no_command": sum(str(step.action).startswith("?") for step in steps),
        "dropped": sum("dropped" in step.info for step in steps),
        "prompt_tokens": float(np.mean([sum(each) for each in read])),
        "act_prompt_tokens": float(np.mean([each[-1] for each in read])),
        "tokens_generated": engine.usage.generated,
        "tokens_computed": engine.usage.computed,
    }
    asked = lessons(told, cell.world, cell.system, split)
    found |= {"followed": followed(asked, policy, code, engine), "told": [*map(told_share, asked)]}
    return {
        **asdict(cell),
        "split": split,
        "digest": told.digest,
        "sources": sources(),
        "cpu_play_s": round(time.process_time() - began, 1),
    } | found


def acts(asked: Sequence[Lesson]) -> list[Lesson]:
    """The lessons of actions."""
    return [one for one in asked if not (one.answer.startswith("think:") or one.prompt.rstrip().endswith("think:"))]


def told_share(asked: Sequence[Lesson]) -> float:
    """The share of an episode's actions whose command stands in a demonstration of the prompt, policy or not."""
    return float(np.mean([*map(is_told, acts(asked))]))


def is_told(lesson: Lesson) -> bool:
    """Returns whether the command of an action stands in a demonstration of its prompt."""
    demonstrations, mark, _ = lesson.prompt.partition("Now it is your turn.")
    return bool(mark) and bool(_commands(demonstrations) & _commands(f"> act: {_bare(lesson)}"))


def _commands(text: str) -> set[str]:
    return {found[3] for found in COMMAND.finditer(text)}


def _bare(one: Lesson) -> str:
    return one.answer.removeprefix("act:").strip()


def followed(asked: Sequence[Sequence[Lesson]], policy: Policy, code: Code, engine: LocalEngine) -> list[float]:
    """By episode, how often the action is the expert's where the thought and the steps before are the expert's too."""
    pen = Coded(writer_for(policy), code).begin(0)
    flat = [(at, one) for at, episode in enumerate(asked) for one in acts(episode)]
    works = [pen.write(WriteRequest(Prompt("", one.prompt), ("\n",), _LONGEST, allow_shorter=True)) for _, one in flat]
    right: list[list[float]] = [[] for _ in asked]
    for done in run_jobs(works, engine, slots=16):
        at, one = flat[done.index]
        said = done.value.text if done.value is not None else ""
        right[at].append(float(TOKEN.findall(_same(said)) == TOKEN.findall(_same(one.answer))))
    return [float(np.mean(each)) for each in right]


def _same(action: str) -> str:
    return action.strip().removeprefix("act").strip().removeprefix(":").strip()
