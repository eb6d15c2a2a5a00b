"""Practice: learning by acting. Play, look, give credit, improve; then the same again with the better policy.

A method's file has the loop and says what credit is. Everything around it is here: whose weights play, what is known of
an episode before credit is given, passes through what was played, critic and reference, going on after a stop.

    with run.practise(policy, setup) as practice:
        for _ in practice.rounds():
            seen = practice.look(practice.play(practice.starts(tasks)))
            practice.improve(seen, credit_of(seen))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from evolvent.config import Config
from evolvent.engine.asks import Sampling
from evolvent.errors import ConfigError, NonFinite
from evolvent.learn.checkpoint import Checkpointer, Saved
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import Objective
from evolvent.learn.packing import Batch, collate_packed, pack
from evolvent.learn.prefix_sharing import batches
from evolvent.learn.token_sequences import Parts, flatten
from evolvent.learn.trained import Numbers, check_resumes
from evolvent.models.policy import Policy
from evolvent.rl.advantages import Credit
from evolvent.rl.candidates import with_candidates
from evolvent.rl.credit_samples import is_shown, shown
from evolvent.rl.diagnostics import Idle, episode_health, part_health
from evolvent.rl.prefetch import Ahead
from evolvent.rl.rollout_batch import CUT_OFF, TRUNCATED, Rewards, flat, with_columns
from evolvent.rl.scored_rollout import Seen, Shorter, View, see
from evolvent.rl.task_schedule import Rota
from evolvent.trajectory import Start, Task, Trajectory, sample_rng

__all__ = ["Holder", "Play", "Practice", "PracticeConfig", "Setup", "Tally", "minibatch", "passes"]


class Holder:
    """What a checkpoint of a practice holds of one network: a Learner's weights and moments, or weights alone.

    Raises:
        ConfigError: an optimizer that does not go on from a checkpoint as if it had not been stopped.
    """

    def __init__(self, learner: Learner | None, weights: Mapping[str, Tensor] | None = None) -> None:
        self._learner, self._weights = learner, dict(weights or {})
        if learner is not None:
            check_resumes(learner.optimizer_config)

    @property
    def learner(self) -> Learner | None:
        """The Learner, where there is one."""
        return self._learner

    def groups(self, name: str) -> dict[str, Mapping[str, Tensor]]:
        """Named tensors, by the name of their group."""
        if self._learner is None:
            return {name: self._weights}
        return {name: self._learner.trained.named(), f"{name}-optimizer": self._learner.trained.moments()}

    @property
    def numbers(self) -> Numbers:
        """What the optimizer counts for all weights together; nothing where there is none."""
        return {} if self._learner is None else self._learner.trained.numbers()

    def renumber(self, numbers: Numbers) -> None:
        """Let the optimizer go on from these numbers.

        A checkpoint of an earlier version has the weights that learn where those to play are others: they are turned.
        """
        if self._learner is not None:
            self._learner.trained.renumber(numbers)
            self._learner.trained.settle()

    def progressed(self, share: float) -> None:
        """So much of the practice is behind it: rates may fall."""
        if self._learner is not None:
            self._learner.share = share

    def begin(self, moments: Iterable[str]) -> None:
        """Let the optimizer make the state that is to be filled."""
        if self._learner is not None:
            self._learner.trained.begin({moment.partition("/")[2] for moment in moments})


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of the passes.

    Attributes:
        updates: taken. in_row: how many of the last were not finite, with those of earlier passes. stopped: a limit
            ended the passes. skipped: updates that were not finite, and so were not taken.
        tokens: targets learned. fed: real tokens fed.
        means: over the updates: loss, gradient norm, and what the objective measured.
    """

    updates: int
    in_row: int
    stopped: bool
    tokens: int = 0
    fed: int = 0
    skipped: int = 0
    means: Mapping[str, float] = field(default_factory=dict)


def passes(
    learner: Learner, chains: Sequence[Parts], *, epochs: int, minibatches: int, rng: Generator, in_row: int = 0
) -> Tally:
    """Improve a learner on these sequences: every pass in another order, cut into minibatches as equal as can be.

    An update beyond the objective's limit is not taken, and ends all passes. One that is not finite is not taken
    either; so many in a row as the learner has patience end them. Afterwards the policy's weights are those to play
    (`Trained.learning`).

    Args:
        in_row: how many updates before these were not finite.
    Raises:
        NothingToLearn: a minibatch without learned targets.
    """
    sums: dict[str, list[float]] = {}
    orders, cuts = rng.spawn(2)  # apart, so that how batches are cut does not change what is in them
    updates, skipped, stopped, tokens, fed = 0, 0, False, 0, 0
    with learner.trained.learning():
        for _ in range(epochs):
            order = orders.permutation(len(chains))
            for rows in np.array_split(order, min(minibatches, len(chains))):
                metrics = learner.update(minibatch(learner, chains, rows.tolist(), rng=cuts))
                stopped = metrics.stopped
                in_row = in_row + 1 if metrics.skipped else 0
                said = dict(metrics.stats)
                fed += 0 if stopped else metrics.fed
                skipped += metrics.skipped
                if stopped or metrics.skipped:
                    learner.updates -= 1
                else:
                    updates, tokens = updates + 1, tokens + metrics.tokens
                    said |= {"loss": metrics.loss, "grad_norm": metrics.grad_norm, "lr": metrics.lr}
                for name, value in said.items():
                    sums.setdefault(name, []).append(value)
                if stopped or in_row >= learner.config.patience:
                    break
            if stopped or in_row >= learner.config.patience:
                break
    means = {name: float(np.mean(values)) for name, values in sums.items()}
    return Tally(updates, in_row, stopped, tokens, fed, skipped, {**means, "stopped": float(stopped)})


def minibatch(learner: Learner, chains: Sequence[Parts], chosen: Sequence[int], *, rng: Generator) -> list[Batch]:
    """The micro-batches of one update, in the learner's layout."""
    most = learner.config.most
    if learner.layout == "packed" and all(chains[index].parent is None for index in chosen):
        lengths = [chains[index].feed for index in chosen]
        rows = pack(lengths, max(most, *lengths))
        return [collate_packed(chains, [[chosen[place] for place in row]]) for row in rows]
    return batches(chains, chosen, most=most, rng=rng, sharing=learner.sharing)


Columns = Mapping[str, NDArray[Any]]
Log = Callable[[Mapping[str, Any]], None]
Trains = Callable[[Policy, Objective, str], Learner]


class Play(Protocol):
    """Plays starts with a policy in an iteration, at most `horizon` steps each."""

    def __call__(
        self,
        policy: Policy,
        starts: Sequence[Start],
        iteration: int,
        /,
        *,
        parents: Mapping[str, Trajectory],
        horizon: int | None,
    ) -> Iterable[Trajectory]: ...


class PracticeConfig(Config):
    """How a policy practises, whatever the method."""

    iterations: int = Field(default=50, ge=1, description="rounds of playing and improving")
    tasks: int = Field(default=16, ge=1, description="tasks of an iteration")
    samples: int = Field(default=4, ge=1, description="episodes of a task in an iteration: its group")
    epochs: int = Field(default=2, ge=1, description="passes through what an iteration played")
    minibatches: int = Field(default=2, ge=1, description="updates of a pass")
    temperature: float = Field(default=1.0, gt=0, description="of playing, and of what is learned")
    top_k: int = Field(default=0, ge=0, le=256, description="likeliest tokens that playing draws from; 0: all")
    choose: bool = Field(default=False, description="play only what the world lists as possible")
    horizon: int | None = Field(default=None, ge=1, description="longest episode; none: what each world says")
    overlap: bool = Field(default=False, description="play the next iteration while this one is learned from")
    max_lag: int = Field(default=1, ge=0, description="iterations that an episode may be older than the policy")
    critic: Literal["shared", "own"] = Field(default="shared", description="values on the policy's trunk, or their own")
    critic_lr: float | None = Field(default=None, gt=0, description="of a critic of its own; none: the learner's")
    critic_warmup: int = Field(default=0, ge=0, description="first iterations in which values alone are learned")
    measure_every: int = Field(default=0, ge=0, description="iterations between measurements; 0: the end alone")
    save_every: int = Field(default=5, ge=1, description="iterations between checkpoints")

    @model_validator(mode="after")
    def _agree(self) -> PracticeConfig:
        if self.overlap and not self.max_lag:
            raise ValueError("what is played ahead is one version behind: overlap needs max_lag of 1 or more")
        if self.overlap and self.top_k:
            raise ValueError("top_k is of the weights that sampled, which overlap has replaced by then: leave one out")
        return self


@dataclass(frozen=True, slots=True)
class Setup:
    """What is practised with; its `repr` tells one practice from another.

    Args:
        method: its name. config: how it practises.
        objective: of the policy. critic: of the values, where there are any: what a critic of its own, or a warm-up,
            minimises. reference: whether log-probabilities of the first policy are asked for.
        deciding: whether actions are chosen as wholes among those that the world lists (`rl/candidates.py`).
        settings: of the method, as text. prepare: makes the other networks of a method, when its practice begins.
    """

    method: str
    config: PracticeConfig
    objective: Objective
    critic: Objective | None = None
    reference: bool = False
    deciding: bool = False
    settings: str = ""
    prepare: Callable[[Practice], None] | None = field(default=None, repr=False)


class Practice:
    """See the module. Made by `run.practise`.

    Args:
        policy: left as it was; what learns is a copy.
        trains: makes a Learner of a policy, an objective and a name, which sets its seed and rate.
        play: plays starts with a policy in an iteration.
        keeper: of the checkpoints.
        show: is handed what is kept of an iteration's credit, to look at (`rl/credit_samples.py`); None: nobody looks.
    Attributes:
        learner: of the policy. critic: of values on a trunk of their own, or None.
        iteration: the one that is under way.
        horizon: most steps of an episode from now on; None: what each world says.
        shorter: what agents read where a conversation is full (`learn.seen.View`); None: there such episodes are over.
        parents: by id, the episodes that those of this iteration branch from.
    """

    shorter: Shorter | None = None

    def __init__(
        self,
        policy: Policy,
        setup: Setup,
        *,
        seed: int,
        trains: Trains,
        play: Play,
        keeper: Checkpointer,
        log: Log,
        show: Log | None = None,
    ) -> None:
        config = setup.config
        self.setup, self.first, self.iteration, self.horizon = setup, policy, 0, config.horizon
        self._seed, self._play, self._keeper, self._log, self._trains = seed, play, keeper, log, trains
        self._show = show
        heat = 1.0 if setup.deciding else config.temperature  # a choice has its own
        sampled = replace(setup.objective, temperature=heat)
        self.learner = trains(policy.clone(), sampled, "policy")
        self.critic: Learner | None = None
        if setup.critic is not None and config.critic == "own":
            self.critic = trains(policy.clone(), setup.critic, "critic")
        self._held: dict[str, Holder] = {"policy": Holder(self.learner)}
        if self.critic is not None:
            self._held["critic"] = Holder(self.critic)
        self.policy = replace(self.learner.policy, version=policy.version)
        self._row: dict[str, float] = {}
        self.parents: dict[str, Trajectory] = {}
        self._idle = Idle()
        self._rota = Rota(seed, tasks=config.tasks, samples=config.samples)
        self._dealt: tuple[Sequence[Task], list[Start]] = ((), [])
        self._ahead: Ahead | None = None
        self._again: Mapping[str, int] = {}
        self._totals = {"episodes": 0, "env_steps": 0, "updates": 0}
        self._broken: dict[str, int] = {}  # by network, how many of its last updates were not finite
        if config.overlap:
            self._ahead = Ahead(policy, self._ahead_play)
            self.follows("ahead", self._ahead.policy.model)
        if setup.prepare is not None:
            setup.prepare(self)

    # ------------------------------------------------------------------ the loop

    def rounds(self) -> Iterator[int]:
        """1, 2, ... to the last iteration; of a practice that was stopped, from the first that is not saved."""
        count, config = self.setup.config.iterations, self.setup.config
        for number in range(self._restored() + 1, count + 1):
            self.iteration, self._row, self.parents = number, {}, {}
            for held in self._held.values():
                held.progressed((number - 1) / count)
            yield number
            self._log({"kind": "practise", "step": number, **self._totals, **self._row})
            if number % config.save_every == 0 or number == count:
                self._save(number)

    def starts(self, tasks: Sequence[Task], *, turn: int = 0, count: int = 0) -> list[Start]:
        """This iteration's episodes (`rl/task_schedule.py`).

        Args:
            turn: asked again in one iteration, with 1, 2, ...: so many (`count`) other tasks.
        Raises:
            ConfigError: no tasks.
        """
        if turn:
            return self._rota.more(tasks, self.iteration, turn=turn, count=count)
        self._dealt = (tasks, self._rota.starts(tasks, self.iteration))
        return self._dealt[1]

    def play(self, starts: Sequence[Start], *, parents: Mapping[str, Trajectory] | None = None) -> list[Trajectory]:
        """Play these with the policy as it is now.

        Args:
            parents: by id, the episodes that starts in the middle branch from.
        """
        known = parents or {}
        self.parents |= known
        played = self._played_ahead(starts) if self._ahead is not None else None
        if played is None:
            played = list(self._play(self.policy, starts, self.iteration, parents=known, horizon=self.horizon))
        self._totals["episodes"] += len(played)
        self._totals["env_steps"] += sum(len(one.steps) for one in played)
        return played

    def _played_ahead(self, starts: Sequence[Start]) -> list[Trajectory] | None:
        """What was played ahead, if it is this, while the next iteration begins to be played."""
        ahead, number = self._ahead, self.iteration
        if ahead is None or starts is not self._dealt[1]:
            return None
        if self._again.get("iteration") == number:  # what was under way at the stop that this practice goes on from
            ahead.relaunch(self._again["version"], starts, number)
        played = ahead.take(starts, number)
        if number < self.setup.config.iterations:
            ahead.launch(self.policy, self._rota.starts(self._dealt[0], number + 1), number + 1)
        return played

    def _ahead_play(self, policy: Policy, starts: Sequence[Start], iteration: int) -> Iterable[Trajectory]:
        return self._play(policy, starts, iteration, parents={}, horizon=self.horizon)

    def close(self) -> None:
        """Nothing is played any more."""
        if self._ahead is not None:
            self._ahead.close()

    def look(self, played: Sequence[Trajectory], *, rewards: Rewards | None = None, final: bool = False) -> Seen:
        """What is known of these episodes: their parts, and what policy, critic and reference say of them.

        Args:
            rewards: of each step; None: those the environment paid.
            final: whether rewards judge an episode as it ended, so that nothing is to come where the horizon cut it.
        Raises:
            NothingToLearn: no episode can be learned from, or too many could not be scored.
        """
        policy = self.policy
        chains = flatten(
            played, policy.dialect, instructions=lambda task: "", context=policy.context + 1, stops=True
        ).parts
        oldest = policy.version - self.setup.config.max_lag
        found, report = flat(played, chains, rewards=rewards, least_version=oldest)
        if final:
            found = replace(found, ended=np.where(found.ended == TRUNCATED, CUT_OFF, found.ended))
        self._row |= episode_health(played, report)
        return see(self.view, played, chains, found=found, report=report)

    @property
    def view(self) -> View:
        """Whose word is asked for about what is played."""
        setup, config, train = self.setup, self.setup.config, self.learner.config
        dtype = torch.bfloat16 if train.dtype == "bfloat16" else torch.float32
        return View(
            self.policy,
            Sampling(config.temperature, config.top_k),
            self.first if setup.reference else None,
            self.valued,
            config.choose,
            setup.deciding,
            train.most,
            dtype,
            self.shorter,
            self.learner.sharing,
        )

    @property
    def valued(self) -> Policy | None:
        """Whose values are asked for: the critic's, the policy's own, or nobody's."""
        if self.setup.critic is None:
            return None
        return self.policy if self.critic is None else self.critic.policy

    def improve(self, seen: Seen, credit: Credit, **more: NDArray[Any]) -> None:
        """One or more passes through what was seen, with this credit, and columns `[P]` that an objective reads more.

        In the first iterations, `critic_warmup` of them, values alone are learned. Where no episode teaches anything
        (all groups have equal rewards, or all episodes were cut and are masked for it) the weights stay, and that is
        counted.

        Raises:
            NothingToLearn: so it was too often in a row; says why. NonFinite: so many updates were not finite.
        """
        columns = {"advantages": credit.advantage, "returns": credit.returns, **more}
        self._row |= part_health(seen.flat, seen.said, columns, version=self.policy.version)
        self._row |= {name: float(count) for name, count in credit.counts.items()}
        if self._show is not None and is_shown(self.iteration, self.setup.config.iterations):
            self._show(shown(seen, credit, iteration=self.iteration, word=self.policy.tokenizer.decode))
        kept = np.ones(seen.flat.parts, np.bool_) if credit.kept is None else credit.kept
        taught = kept.any() and bool(np.any(credit.advantage[kept]))
        self._idle.note(seen.flat, credit, taught=taught or self.setup.critic is not None)
        self._row["idle"] = float(self._idle.count > 0)
        self._idle.check(self._row.get("success", 0.0))
        if self._idle.count == 0:
            self._improve(seen, columns, kept)
        self.advance()

    def _improve(self, seen: Seen, columns: Columns, kept: NDArray[np.bool_]) -> None:
        known: dict[str, NDArray[Any]] = {
            "old": seen.old,
            "behaviour": seen.flat.logp,
            "action": seen.flat.action,
            "span": seen.flat.span,
            **{name: seen.said[name] for name in ("reference",) if name in seen.said},
            **({"old_values": seen.values} if "values" in seen.said else {}),
        }
        chains = with_columns(seen.chains, seen.flat, {**known, **columns}, kept=kept)
        choices = with_candidates(seen.played, chains) if self.setup.deciding else chains
        values, warming = self.setup.critic, self.iteration <= self.setup.config.critic_warmup
        if self.critic is not None:
            self._note("critic_", self._pass(self.critic, chains, "critic"))
        if not warming or values is None:
            self._note("", self._pass(self.learner, choices, "policy"))
        elif self.critic is None:
            with self.learner.towards(values):
                self._note("critic_", self._pass(self.learner, chains, "critic"))

    def advance(self) -> None:
        """The policy as it is now is the next version: what it plays from now on is told from what it played."""
        self.policy = replace(self.learner.policy, version=self.policy.version + 1)

    @property
    def measured(self) -> Mapping[str, float]:
        """The numbers of this iteration so far."""
        return self._row

    def note(self, values: Mapping[str, float]) -> None:
        """Put numbers of a method beside those of this iteration."""
        self._row |= values

    def _pass(self, learner: Learner, chains: Sequence[Any], name: str) -> Tally:
        rng = sample_rng(self._seed, name, self.iteration)
        config = self.setup.config
        tally = passes(
            learner,
            chains,
            epochs=config.epochs,
            minibatches=config.minibatches,
            rng=rng,
            in_row=self._broken.get(name, 0),
        )
        self._broken[name] = tally.in_row
        self._totals["updates"] += tally.updates
        for what, count in (("trained", tally.tokens), ("fed", tally.fed), ("skipped", tally.skipped)):
            self._row[what] = self._row.get(what, 0) + count
        if tally.in_row >= learner.config.patience:
            raise NonFinite(
                f"{tally.in_row} updates in a row of the {name} were not finite, up to iteration {self.iteration}",
                expected=f"at most {learner.config.patience - 1} (train.patience)",
                hint="lower train.lr, or look at rewards and log-probabilities of that iteration's episodes",
            )
        return tally

    def _note(self, prefix: str, tally: Tally) -> None:
        self._row |= {f"{prefix}{name}": value for name, value in tally.means.items()}
        clipped = [tally.means[name] for name in ("clip_low", "clip_high") if name in tally.means]
        self._row |= {f"{prefix}clipped": sum(clipped)} if clipped else {}

    def due(self) -> bool:
        """Whether the policy is to be measured after this iteration."""
        every, number = self.setup.config.measure_every, self.iteration
        return number == self.setup.config.iterations or (every > 0 and number % every == 0)

    # ------------------------------------------------------------------ networks of a method

    def learns(self, name: str, policy: Policy, objective: Objective) -> Learner:
        """One more network that learns (a Q function, say); it is kept and comes back with the rest."""
        learner = self._trains(policy, objective, name)
        self._held[name] = Holder(learner)
        return learner

    def passes_of(self, name: str, seen: Seen, columns: Columns) -> None:
        """Passes of such a network through what was seen."""
        learner = self._held[name].learner
        if learner is None:
            raise ConfigError(f"the network {name!r} does not learn: it follows another")
        chains = with_columns(seen.chains, seen.flat, {"action": seen.flat.action, **columns})
        self._note(f"{name}_", self._pass(learner, chains, name))

    def follows(self, name: str, module: Any) -> None:
        """Weights that a method changes itself (a target network) are kept too, but for those below an adapter."""
        below = {weight.data_ptr() for weight in self.learner.policy.model.parameters() if not weight.requires_grad}
        own = {what: weight for what, weight in module.named_parameters() if weight.data_ptr() not in below}
        self._held[name] = Holder(None, own)

    # ------------------------------------------------------------------ going on after a stop

    def _save(self, number: int) -> None:
        groups = {group: tensors for name, held in self._held.items() for group, tensors in held.groups(name).items()}
        values = {
            "iteration": number,
            "totals": self._totals,
            "version": self.policy.version,
            "idle": self._idle.count,
            "why_idle": dict(self._idle.why),
            "broken": self._broken,
            "ahead": {} if self._ahead is None else self._ahead.under_way(),
            "numbers": {name: held.numbers for name, held in self._held.items()},
            "updates": {name: held.learner.updates for name, held in self._held.items() if held.learner is not None},
        }
        self._keeper.save(number, Saved(groups, values))

    def _restored(self) -> int:
        """Go back to the newest checkpoint; returns its iteration, 0 where there is none."""
        stored = self._keeper.open()
        if stored is None:
            return 0
        for name, held in self._held.items():
            held.begin(stored.groups.get(f"{name}-optimizer", ()))
        into = {group: tensors for name, held in self._held.items() for group, tensors in held.groups(name).items()}
        saved = self._keeper.load(stored.path, into=into, groups=tuple(into))
        values = stored.values if saved is None else saved.values
        for name, updates in values["updates"].items():
            learner = self._held[name].learner
            if learner is not None:
                learner.updates = updates
        for name, numbers in values.get("numbers", {}).items():  # checkpoints of earlier versions have none
            self._held[name].renumber(numbers)
        self._totals.update(values["totals"])
        self.policy = replace(self.learner.policy, version=values["version"])
        self._again = values["ahead"]
        self._idle = Idle(int(values["idle"]), values.get("why_idle"))  # checkpoints of earlier versions do not say why
        self._broken = {name: int(count) for name, count in values.get("broken", {}).items()}
        self.iteration = int(values["iteration"])
        return self.iteration
