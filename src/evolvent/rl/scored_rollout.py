"""What is known of played episodes before credit is given: their parts, and what policy, critic and reference say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.engine.asks import Sampling
from evolvent.learn.forward import outputs
from evolvent.learn.objectives import given
from evolvent.learn.packing import Batch
from evolvent.learn.prefix_sharing import Sharing
from evolvent.learn.token_sequences import Parts
from evolvent.models.dialects import Dialect
from evolvent.models.policy import Policy
from evolvent.rl.advantages import Credit
from evolvent.rl.candidates import chosen_logprobs, with_candidates
from evolvent.rl.estimators import CreditRule
from evolvent.rl.rollout_batch import CUT_OFF, TRUNCATED, Flat, FlattenReport
from evolvent.rl.scoring import Look, chosen_supports, look, said_of, supports
from evolvent.trajectory import Trajectory, sample_seed

__all__ = ["Seen", "Shorter", "View", "gathered", "see", "with_final_values", "with_finals"]

Columns = Mapping[str, NDArray[Any]]
Shorter = Callable[[Trajectory], Sequence[int] | None]
_WORDS: tuple[Look, ...] = ("logprobs",)
_VALUES: tuple[Look, ...] = ("values",)
_BOTH: tuple[Look, ...] = ("logprobs", "values")


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Played episodes, ready for credit.

    Attributes:
        played: all that was played, also what cannot be learned from.
        chains: token sequences of all of them. flat: the parts of those that are learned. report: what was left out.
        said: by name `[P]`, float64: "old", log-probabilities under the weights that will be improved, before they
            are; "values", of the prefix before each part; "reference", log-probabilities under the reference.
        episodes: `[E]`, the trajectories that `flat` is made of.
    """

    played: Sequence[Trajectory]
    chains: Sequence[Parts]
    flat: Flat
    report: FlattenReport
    said: Columns
    episodes: tuple[Trajectory, ...]

    @property
    def old(self) -> NDArray[np.float64]:
        """`[P]`."""
        return self.said["old"]

    @property
    def values(self) -> NDArray[np.float64]:
        """`[P]`; only where there is a critic."""
        return self.said["values"]

    @property
    def reference(self) -> NDArray[np.float64]:
        """`[P]`; only where there is a reference."""
        return self.said["reference"]

    @property
    def anchors(self) -> NDArray[np.int64]:
        """`[A]`, a hash of the observation that each action answered (GiGPO's anchor states)."""
        first = np.flatnonzero(np.append(True, self.flat.last[:-1]))
        found = []
        for part, episode in zip(first.tolist(), self.flat.episode.tolist(), strict=True):
            step = int(self.chains[int(self.flat.chain[part])].step[int(self.flat.place[part])])
            found.append(sample_seed(self.episodes[episode].steps[step].observation))
        return np.asarray(found, np.int64)

    def credit(self, rule: CreditRule) -> Credit:
        """What a rule of credit says of these episodes, given all that it needs.

        Raises:
            BatchMismatch: it needs values or a reference that were not asked for.
        """
        given = {name: self.said[name] for name in ("values", "reference") if name in self.said}
        anchors = self.anchors if "anchors" in rule.needs else None
        return rule(self.flat, logp=self.old, anchors=anchors, **given)


@dataclass(frozen=True, slots=True)
class View:
    """Whose word is asked for, and how.

    Args:
        policy: that plays and is improved. first: that it is held to; None: nobody. valued: whose values are asked for.
        sampling: the distribution of actions. choosing: whether they were drawn token by token among those that the
            world listed; deciding: as wholes (`rl/candidates.py`).
        micro: most tokens of a forward. dtype: of it. sharing: how episodes share rows of it; None: not at all.
        shorter: the tokens that the agent would have read at the end of a cut episode whose conversation was full then:
            what its history policy leaves of it, None where that gives up. None: full conversations are over.
    """

    policy: Policy
    sampling: Sampling
    first: Policy | None = None
    valued: Policy | None = None
    choosing: bool = False
    deciding: bool = False
    micro: int | None = None
    dtype: torch.dtype = torch.float32
    shorter: Shorter | None = None
    sharing: Sharing | None = None

    @property
    def forwards(self) -> dict[str, Any]:
        """How everyone is asked, as `look` takes it."""
        return {"tokens": self.micro, "dtype": self.dtype, "sharing": self.sharing}


def see(
    viewer: View, played: Sequence[Trajectory], chains: Sequence[Parts], *, found: Flat, report: FlattenReport
) -> Seen:
    """Ask policy, critic and reference, each once, about every learned token.

    A reference with an adapter shares the weights below it with the policy, and so does a critic.
    """
    if viewer.deciding:
        return _decided(viewer, played, chains, found=found, report=report)
    policy, valued, sampling = viewer.policy, viewer.valued, viewer.sampling
    episodes = tuple(played[number] for number in report.taken)
    read: dict[int, int] = {}
    asked = list(chains)
    if viewer.choosing:
        asked = chosen_supports(played, asked)
    elif sampling.top_k:
        asked = supports(
            policy,
            asked,
            top_k=sampling.top_k,
            temperature=sampling.temperature,
            tokens=viewer.micro,
            sharing=viewer.sharing,
        )
    plain = asked
    if valued is not None:
        asked, found, read = with_finals(
            asked, found, episodes, dialect=policy.dialect, context=policy.context, shorter=viewer.shorter
        )
    one = valued is not None and valued.model is policy.model
    own = look(
        policy,
        asked if one else plain,
        needs=_BOTH if one else _WORDS,
        temperature=sampling.temperature,
        **viewer.forwards,
    )
    said = {"old": gathered(own, "logprobs", found)}
    if valued is not None:
        values = own if one else look(valued, asked, needs=_VALUES, **viewer.forwards)
        said["values"] = gathered(values, "values", found)
        found = with_final_values(found, values, read)
    if viewer.first is not None:
        first = look(viewer.first, plain, temperature=sampling.temperature, **viewer.forwards)
        said["reference"] = gathered(first, "logprobs", found)
    return Seen(played, plain, found, report, said, episodes)


def _decided(
    viewer: View, played: Sequence[Trajectory], chains: Sequence[Parts], *, found: Flat, report: FlattenReport
) -> Seen:
    """The same where actions are chosen whole: "old" has the log-probability of each on its first token."""
    policy, valued, heat = viewer.policy, viewer.valued, viewer.sampling.temperature
    episodes = tuple(played[number] for number in report.taken)

    def read(model: Any, batch: Batch) -> Mapping[str, Tensor]:
        said = given(outputs(model, batch, dtype=viewer.dtype).logprobs, "logprobs")
        return {"logprobs": chosen_logprobs(said, batch, heat=heat)}

    own = said_of(policy.model, with_candidates(played, chains), read, tokens=viewer.micro)
    columns = {"old": gathered(own, "logprobs", found)}
    if valued is not None:
        asked, found, places = with_finals(
            chains, found, episodes, dialect=policy.dialect, context=policy.context, shorter=viewer.shorter
        )
        values = look(valued, asked, needs=_VALUES, **viewer.forwards)
        columns["values"] = gathered(values, "values", found)
        found = with_final_values(found, values, places)
    return Seen(played, chains, found, report, columns, episodes)


def gathered(columns: Sequence[Mapping[str, NDArray[Any]]], name: str, found: Flat) -> NDArray[np.float64]:
    """A column of the chains at the parts, `[P]`, in double precision."""
    values = np.zeros(found.parts)
    order = np.argsort(found.chain, kind="stable")
    numbers, first = np.unique(found.chain[order], return_index=True)
    for number, mine in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
        values[mine] = columns[number][name][found.place[mine]]
    return values


# ------------------------------------------------------------------ values of final observations


def with_finals(
    chains: Sequence[Parts],
    found: Flat,
    episodes: Sequence[Trajectory],
    *,
    dialect: Dialect,
    context: int,
    shorter: Shorter | None = None,
) -> tuple[list[Parts], Flat, dict[int, int]]:
    """The chains of truncated episodes with the final observation behind them, so that it has a value too.

    The last of its tokens is a place to read a value at; nothing is learned there. Where the final observation does not
    fit the context, the value is that of what the agent would have read in its place: a chain of its own, at the end.
    Without such a reading there is no next action, and the episode is cut off.

    Args:
        shorter: see `View`.
    Returns:
        the chains, the flat record, and for each action at whose end a value is read, its chain.
    """
    made, ended, read = list(chains), found.ended.copy(), {}
    last = np.flatnonzero(found.last)
    for action in np.flatnonzero(found.ended == TRUNCATED).tolist():
        number = int(found.chain[last[action]])
        episode = episodes[int(found.episode[action])]
        longer = _extended(made[number], episode, dialect)
        if longer is not None and len(longer) <= context:
            made[number], read[action] = longer, number
            continue
        root = shorter(episode) if longer is not None and shorter is not None else None
        if root and len(root) < context:
            read[action] = len(made)
            made.append(_rooted(made[number], root))
        else:
            ended[action] = CUT_OFF
    return made, replace(found, ended=ended), read


def with_final_values(
    found: Flat, columns: Sequence[Mapping[str, NDArray[Any]]], read: Mapping[int, int], *, name: str = "values"
) -> Flat:
    """The flat record with the values of its final observations, read off the last place of their chains."""
    bootstrap = np.zeros(len(found.ended))
    for action, number in read.items():
        bootstrap[action] = columns[number][name][-1]
    return replace(found, bootstrap=bootstrap)


def _extended(chain: Parts, trajectory: Trajectory, dialect: Dialect) -> Parts | None:
    """The chain, what the policy would have read next, and one token more; None where the observation is no text."""
    if not isinstance(trajectory.final_observation, str) or not trajectory.steps[-1].generations:
        return None
    stopped = trajectory.steps[-1].generations[-1].stop != "length"
    tail = dialect.turn(trajectory.final_observation, stopped=stopped)
    count = len(tail) + 1

    def longer(values: NDArray[Any], fill: object) -> NDArray[Any]:
        return np.concatenate([values, np.full((count, *values.shape[1:]), fill, values.dtype)])

    weight = longer(chain.weight, 0)
    weight[-1] = 1.0
    return replace(
        chain,
        ids=np.concatenate([chain.ids, np.asarray([*tail, tail[-1] if tail else 0], np.int32)]),
        written=longer(chain.written, False),
        sampled=longer(chain.sampled, False),
        logprobs=longer(chain.logprobs, 0),
        step=longer(chain.step, chain.step[-1]),
        span=longer(chain.span, -1),
        weight=weight,
        columns={name: longer(column, -1 if name == "support" else 0) for name, column in chain.columns.items()},
    )


def _rooted(chain: Parts, root: Sequence[int]) -> Parts:
    """A conversation begun anew, of which nothing was sampled, and one token more, with the columns of this chain."""
    count = len(root) + 1
    made = {name: np.zeros((count, *column.shape[1:]), column.dtype) for name, column in chain.columns.items()}
    none, weight = np.zeros(count, np.bool_), np.zeros(count, np.float32)
    weight[-1] = 1.0
    return Parts(
        chain.trajectory,
        np.asarray([*root, root[-1]], np.int32),
        none,
        none,
        np.zeros(count, np.float32),
        np.full(count, chain.step[-1]),
        np.full(count, -1, chain.span.dtype),
        weight,
        columns={name: column - 1 if name == "support" else column for name, column in made.items()},
    )
