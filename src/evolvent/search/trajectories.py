"""Trajectories of a search: the path to a state, or its whole tree as branches.

Token ids and log-probabilities are those of the sampler, so a learner can take them as they are. In a tree
every token is learned once: a path that leaves another one reads the shared tokens, and has sampled only its
own part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from evolvent.errors import ConfigError
from evolvent.search.proposers import EnvState
from evolvent.search.records import SearchResult
from evolvent.search.writing import TextState
from evolvent.trajectory import (
    Annotation,
    AnnotationTarget,
    Branch,
    EndedBy,
    Generation,
    Score,
    Step,
    Task,
    Trajectory,
    Value,
    unscored,
)
from evolvent.worlds.base import World

__all__ = ["TreeRecord", "env_trajectory", "env_tree", "text_trajectory", "text_tree"]


@dataclass(frozen=True, slots=True)
class TreeRecord:
    """A tree as trajectories, one for each leaf, and annotations of its nodes.

    `annotations` have the scorer `NAME/value` (where there is one) and `NAME/visits`, each at the position where
    the node's own part ends: its last span, or its last step.
    """

    trajectories: list[Trajectory]
    annotations: list[Annotation]


def text_trajectory(
    state: TextState,
    task: Task,
    *,
    name: str,
    observation: Value,
    score: Score | None = None,
    sample: int = 0,
    branch: Branch | None = None,
) -> Trajectory:
    """Converts the text up to a state to an episode of one step.

    Tokens that token-level search chose count as sampled, with the policy's log-probabilities.

    Args:
        observation: the prompt's content, as a record shows it. score: of the episode; its `raw` is the step's
            reward.
        branch: the first `branch.token` tokens of the text are read: another trajectory has them.
    Raises:
        ConfigError: a text without its own tokens.
    """
    num_read = len(state.prompt) + (0 if branch is None else branch.token)
    if num_read >= state.length:
        raise ConfigError(
            "a state without generated tokens is not a trajectory", value=name, expected="a state below the root"
        )
    sampled = np.arange(state.length) >= num_read
    logprobs = np.concatenate([np.zeros(len(state.prompt), np.float32), np.asarray(state.logprobs, np.float32)])
    has_ended = state.stop in ("stop", "finished")
    generation = Generation(
        np.asarray([*state.prompt, *state.written], np.int32),
        sampled,
        np.where(sampled, logprobs, np.float32(0)),
        spans=tuple(end for end_in_text in state.ends if (end := len(state.prompt) + end_in_text) > num_read),
        policy_version=state.version,
        stop="stop" if has_ended else "length",
    )
    score = unscored() if score is None else score
    step = Step(observation, state.text, score.raw, None, (generation,))
    return Trajectory(
        name, task, (step,), "", "world" if has_ended else "horizon", score, sample, branch, None, task.id
    )


def text_tree(
    result: SearchResult,
    task: Task,
    *,
    name: str,
    observation: Value,
    score: Callable[[TextState], Score] | None = None,
) -> TreeRecord:
    """Converts a search over texts to trajectories `NAME/0`, `NAME/1`, ..., one for each leaf, in the order of the
    nodes.
    """
    trajectories, annotations = [], []
    for path in _iterate_paths(result):
        state: TextState = result.tree.states[path.nodes[-1]]
        branch = None
        if path.parent is not None:
            shared: TextState = result.tree.states[path.shared]
            branch = Branch(f"{name}/{path.parent}", 0, len(shared.written))
        trajectory = text_trajectory(
            state,
            task,
            name=f"{name}/{path.number}",
            observation=observation,
            sample=path.number,
            branch=branch,
            score=None if score is None else score(state),
        )
        trajectories.append(trajectory)
        ends = trajectory.steps[0].generations[0].spans
        for node in path.own_nodes:
            length = result.tree.states[node].length
            location = AnnotationTarget(step=0, generation=0, span=ends.index(length))
            annotations += _node_annotations(result, node, f"{name}/{path.number}", location, name)
    return TreeRecord(trajectories, annotations)


def env_trajectory(
    state: EnvState,
    world: World,
    task: Task,
    *,
    name: str,
    sample: int = 0,
    branch: Branch | None = None,
    meta: Mapping[str, object] | None = None,
) -> Trajectory:
    """Converts the episode up to a state to a trajectory, as `collect` would have recorded it.

    An unfinished episode counts as cut by the horizon.

    Args:
        branch: the first `branch.step` steps are another trajectory's: they are read, not played.
    Raises:
        ConfigError: no step of its own.
    """
    states = _episode_states(state)
    first = 0 if branch is None else branch.step
    if first >= len(states) - 1:
        raise ConfigError("a state without actions is not a trajectory", value=name, expected="a state below the root")
    steps, past = list[Step](), list[int]()
    for index, (before, after) in enumerate(pairwise(states)):
        proposal = after.proposal
        generations: tuple[Generation, ...] = ()
        if proposal is None:
            continue
        generation = proposal.generation
        if generation is not None and index >= first:
            generations = (_branch_generation(generation, past, index - first) if first else generation,)
        past += [] if generation is None else generation.ids.tolist()
        if index < first:
            continue
        marks = {**proposal.info, **_recorded_info(after.info)}
        steps.append(
            Step(before.observation, proposal.action, after.rewards[-1], proposal.thought, generations, None, marks)
        )
    ended_by: EndedBy = "world" if state.over == "world" else "horizon"
    score = world.score(list(state.rewards), state.info)
    return Trajectory(
        name, task, tuple(steps), state.observation, ended_by, score, sample, branch, None, task.id, dict(meta or {})
    )


def env_tree(result: SearchResult, world: World, task: Task, *, name: str) -> TreeRecord:
    """Converts a search in an environment to trajectories `NAME/0`, `NAME/1`, ..., one for each leaf, in node order."""
    trajectories, annotations = [], []
    for path in _iterate_paths(result):
        state: EnvState = result.tree.states[path.nodes[-1]]
        steps = len(result.tree.states[path.shared].rewards)
        branch = None if path.parent is None else Branch(f"{name}/{path.parent}", steps)
        trajectory_id = f"{name}/{path.number}"
        trajectories.append(env_trajectory(state, world, task, name=trajectory_id, sample=path.number, branch=branch))
        for node in path.own_nodes:
            location = AnnotationTarget(step=len(result.tree.states[node].rewards) - 1 - (steps if branch else 0))
            annotations += _node_annotations(result, node, trajectory_id, location, name)
    return TreeRecord(trajectories, annotations)


@dataclass(frozen=True, slots=True)
class _Path:
    """A leaf's path. `own_nodes` belong to it; earlier nodes, up to `shared`, belong to the path with number
    `parent`.
    """

    number: int
    nodes: Sequence[int]
    own_nodes: Sequence[int]
    shared: int
    parent: int | None


def _iterate_paths(result: SearchResult) -> Iterator[_Path]:
    tree, owner = result.tree, dict[int, int]()
    leaves = [node for node in tree.leaves() if node]
    for number, leaf in enumerate(leaves):
        nodes = tree.path(leaf)
        own_nodes = [node for node in nodes[1:] if node not in owner]
        owner |= dict.fromkeys(own_nodes, number)
        shared = int(tree.parent[own_nodes[0]])
        yield _Path(number, nodes, own_nodes, shared, owner.get(shared))


def _node_annotations(
    result: SearchResult, node: int, trajectory: str, location: AnnotationTarget, name: str
) -> list[Annotation]:
    value, visits = float(result.tree.value[node]), int(result.tree.visits[node])
    annotations = [Annotation(trajectory, f"{name}/visits", location, float(visits))]
    return annotations if np.isnan(value) else [Annotation(trajectory, f"{name}/value", location, value), *annotations]


def _episode_states(state: EnvState) -> list[EnvState]:
    """Returns the states from the beginning of the episode to this one."""
    states, ancestor = [state], state.above
    while ancestor is not None:
        states.append(ancestor)
        ancestor = ancestor.above
    return states[::-1]


def _branch_generation(generation: Generation, past: Sequence[int], turn: int) -> Generation:
    """Returns a generation of a branch: its first reads all earlier tokens, as a new root."""
    if turn:
        return replace(generation, extends=turn - 1)
    count = len(past)
    return replace(
        generation,
        ids=np.concatenate([np.asarray(past, np.int32), generation.ids]),
        sampled=np.concatenate([np.zeros(count, np.bool_), generation.sampled]),
        logprobs=np.concatenate([np.zeros(count, np.float32), generation.logprobs]),
        extends=None,
    )


def _recorded_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of an environment's info that a step's record keeps."""
    marks: dict[str, Any] = {"invalid": True} if info.get("invalid") else {}
    return marks | ({"answered": bool(info["answered"])} if "answered" in info else {})
