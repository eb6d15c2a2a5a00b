"""Lookup: questions over a hidden database, drawn afresh for each task; each action queries one relation.

    find home of boss of anna  ->  boss of anna  ->  oscar  ->  home of oscar  ->  keldon  ->  answer keldon

The kind of a task is its chain of relations. Two thirds of the adjacent pairs of relations are demonstrated. `seen` and
`combo` chains hold only such pairs, and no `combo` chain is ever trained as a whole; `evo` chains hold at least one
other pair, which only exploring can find; `longer` chains are one relation longer than any trained, of demonstrated
pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import TIERS, Grammar, Info, Plain, Reply, StateEnv, check_task, score_if_won
from evolvent.worlds.facts import NAMES, RELATIONS, Chain, FactsDatabase, chains, draw_facts
from evolvent.worlds.panel import Candidate, Panels, Sizes

__all__ = ["Lookup", "LookupEnv", "tiers_of_chains"]

_EXPECTED = "expected relation of name or answer name"
_RIGHT, _WRONG = "right", "wrong"


@dataclass(frozen=True, slots=True)
class _Action:
    """A parsed action: a relation (None: an answer) and an entity; `refusal` explains why it is impossible, if it
    is.
    """

    relation: str | None
    entity: int
    refusal: str = ""


def _build_actions() -> dict[str, _Action]:
    """Maps every action text to its action, possible or not."""
    actions = {f"answer {name}": _Action(None, entity) for entity, name in enumerate(NAMES)}
    for relation in RELATIONS.values():
        for entity, name in enumerate(NAMES):
            refusal = "" if entity in relation.subjects else f"{name} has no {relation.name}"
            actions[f"{relation.name} of {name}"] = _Action(relation.name, entity, refusal)
    return actions


_ACTIONS: Mapping[str, _Action] = _build_actions()
_ADMISSIBLE = tuple(text for text, action in _ACTIONS.items() if not action.refusal)


def _render_question(chain: Chain) -> str:
    """Renders a chain as a question names it, last relation first: ("boss", "home") is "home of boss"."""
    return " of ".join(reversed(chain))


def _is_demonstrated(first: str, then: str) -> bool:
    """Returns whether demonstrations show these two relations one after the other.

    Number the relations that lead to a type and those that apply to it: every third diagonal is held out, so that
    each relation keeps about two thirds of its possible predecessors and successors.
    """
    kind = RELATIONS[first].value_type
    leading = [name for name, relation in RELATIONS.items() if relation.value_type == kind]
    following = [name for name, relation in RELATIONS.items() if relation.subject_type == kind]
    return (leading.index(first) + following.index(then)) % 3 != 0


def tiers_of_chains(hops: int) -> dict[str, tuple[Chain, ...]]:
    """Returns the chains of each tier, where training chains have up to `hops` (at least 3) relations.

    Of the chains of demonstrated pairs, those of up to two relations are `seen`; of the longer ones a hash of the chain
    makes half of them `seen` and half `combo`. Within a tier chains of all lengths are mixed, in the order of a hash.
    """
    demonstrated_pairs = {pair for pair in chains(2) if _is_demonstrated(*pair)}
    tiers: dict[str, list[Chain]] = {tier: [] for tier in TIERS}
    for length in range(1, hops + 2):
        for chain in chains(length):
            is_demonstrated = demonstrated_pairs.issuperset(pairwise(chain))
            if length > hops:
                tiers["longer"] += [chain] if is_demonstrated else []
            elif not is_demonstrated:
                tiers["evo"].append(chain)
            else:
                is_held_out = length > 2 and sample_seed("lookup", "seen", *chain) % 2 == 0
                tiers["combo" if is_held_out else "seen"].append(chain)
    return {
        tier: tuple(sorted(tier_chains, key=lambda chain: sample_seed("chain", *chain)))
        for tier, tier_chains in tiers.items()
    }


class Lookup:
    """The world of questions over a hidden database.

    Args:
        hops: most relations in a training question (3 to 5); `longer` has one more.
        penalty: reward of an action that is none or cannot be (zero or negative).
        sizes: how many tasks the panels hold.
    Raises:
        ConfigError: for hops outside 3 to 5 or a positive penalty.
    """

    name = "lookup"
    version = "1"
    grammar: Grammar = Plain()
    tiers = TIERS
    run_in_thread = False
    instructions = (
        "Answer a question about people, cities and countries. Ask one relation of one name at a time, for example "
        f"'boss of {NAMES[0]}'; you are told its value. When you know the answer, write 'answer' and the name. "
        f"Relations: {', '.join(RELATIONS)}."
    )

    def __init__(self, *, hops: int = 3, penalty: float = 0.0, sizes: Sizes | None = None) -> None:
        problems = []
        if not 3 <= hops <= 5:
            problems.append(Problem("hops", f"got {hops} relations in a question, expected 3, 4 or 5 (combo needs 3)"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"got {penalty}, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.hops, self.penalty = hops, penalty
        self.horizon = 2 * hops + 2
        self.reward_range = (penalty, 1.0)
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw)

    @cached_property
    def _chains(self) -> Mapping[str, tuple[Chain, ...]]:
        return tiers_of_chains(self.hops)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields tasks without end: one of every kind of the tier, then the next of every kind."""
        for seed in count():
            for chain in self._chains[tier]:
                spec: dict[str, Json] = {"chain": list(chain), "seed": seed}
                yield Candidate(spec, _render_question(chain), tier, draw_facts(chain, seed).canonical())

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in names; panels are dealt by it."""
        return draw_facts(*self._parse_spec(task)).canonical()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> LookupEnv:
        """Creates an Env for a task of this world.

        Raises:
            ConfigError: for a task of another world, or a spec without a possible chain and a seed.
            VersionMismatch: for a task of another version.
        """
        return LookupEnv(task, *self._parse_spec(task), penalty=self.penalty)

    def _parse_spec(self, task: Task) -> tuple[Chain, int]:
        check_task(self, task)
        chain, seed = task.spec.get("chain"), task.spec.get("seed")
        problems = []
        if not _is_possible(chain):
            problems.append(Problem("chain", f"unknown chain of relations {chain!r}", f"known: {', '.join(RELATIONS)}"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"got {seed!r}, expected a whole number"))
        if problems:
            raise ConfigError(problems)
        return tuple(task.spec["chain"]), task.spec["seed"]

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the right answer, whatever penalties came before; raw = the sum of the
        rewards.
        """
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the shortest solution: query the relations in order, then answer."""
        facts = draw_facts(*self._parse_spec(task))
        names = [NAMES[entity] for entity in facts.walk()]
        queries = [f"{relation} of {name}" for relation, name in zip(facts.chain, names, strict=False)]
        return [*queries, f"answer {names[-1]}"]

    def vocabulary(self) -> Sequence[str]:
        texts = (*_ACTIONS, *(action.refusal for action in _ACTIONS.values()), "find", _EXPECTED, _RIGHT, _WRONG)
        return sorted({word for text in texts for word in text.split()})


def _is_possible(chain: object) -> bool:
    """Returns whether each relation of the chain is known and applies to the value of the one before."""
    if not isinstance(chain, Sequence) or isinstance(chain, str) or not chain:
        return False
    if not all(isinstance(name, str) and name in RELATIONS for name in chain):
        return False
    return all(RELATIONS[first].value_type == RELATIONS[then].subject_type for first, then in pairwise(chain))


class LookupEnv(StateEnv[None]):
    """One question, about facts that never change. The database is filled at the first query and closed at the end
    of the episode.
    """

    def __init__(self, task: Task, chain: Chain, seed: int, *, penalty: float) -> None:
        super().__init__(task, None)
        self._penalty = penalty
        self._facts = draw_facts(chain, seed)
        self._database: FactsDatabase | None = None

    def _observe_start(self) -> tuple[Value, Info]:
        self.close()  # An earlier episode may have left its database open.
        return f"find {_render_question(self._facts.chain)} of {NAMES[self._facts.start]}", {"admissible": _ADMISSIBLE}

    def _transition(self, state: None, action: Value) -> tuple[None, Reply]:
        info: dict[str, object] = {"admissible": _ADMISSIBLE}
        parsed_action = _ACTIONS.get(str(action)) or _ACTIONS.get(" ".join(str(action).lower().split()))
        if parsed_action is None or parsed_action.refusal:
            info["invalid"] = True
            refusal = parsed_action.refusal if parsed_action else _EXPECTED
            return None, (refusal, self._penalty, False, False, info)
        if parsed_action.relation is None:
            is_correct = parsed_action.entity == self._facts.walk()[-1]
            self.close()
            return None, (_RIGHT if is_correct else _WRONG, float(is_correct), True, False, info)
        if self._database is None:
            self._database = FactsDatabase(self._facts)
        answer = NAMES[self._database.ask(parsed_action.relation, parsed_action.entity)]
        return None, (answer, 0.0, False, False, info)

    def restore(self, value: object) -> None:
        """Restores a snapshot of the same task; raises ConfigError for any other value."""
        super().restore(value)
        if not self._running:
            self.close()

    def close(self) -> None:
        super().close()
        if self._database is not None:
            self._database.close()
            self._database = None
