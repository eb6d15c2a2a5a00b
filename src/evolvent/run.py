"""A run: one directory, its seeds, its metrics, and the ledger of finished stages. Resuming lives here only.

A method calls verbs, `collect`, `fit` and `evaluate` above all, which are handed to the run: in this process, against
world servers, or on a cluster. Each call is a stage. A stage is named by its place in the method and known by the
digest of everything it depends on. A finished stage is not done again: the same method, started on the same directory,
runs through its finished stages at once and goes on where it stopped. Two arms that share a stage (a method and its
control share the cloning) do it once.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from evolvent.backend import Stage, Verbs, Weighting
from evolvent.errors import ConfigError
from evolvent.files import append_line, disk_errors, write_atomic
from evolvent.identity import check_identity, fingerprint, version_1_text
from evolvent.rollout.evaluate import Evaluation
from evolvent.store.ledger import Ledger, read_rows, read_spent, write_spent
from evolvent.store.schema import INTERRUPTED, encode
from evolvent.store.store import Store
from evolvent.trajectory import Start, Trajectory, canonical_json, sample_seed, trajectory_name

P = TypeVar("P")

__all__ = ["Evaluation", "Finished", "Open", "Run", "Shared", "Stage", "Verbs"]


KEY_VERSION = 2
"""Version of the keys of finished stages: 1 hashed Python's `repr`, 2 hashes canonical JSON (`evolvent.identity`)."""
_SAME_AS_OPTIONS = object()


@dataclass(frozen=True)
class StageKey:
    """What a stage is known by.

    Attributes:
        current: its key in the ledger.
        version_1: the key that version 1 gave it. Stage names and seeds derive from it, so that a seed gives the same
            numbers as before, and it finds the finished stages of runs of that version.
    """

    current: str
    version_1: str


@dataclass(frozen=True)
class Shared:
    """What all arms of a run share."""

    folder: Path
    seed: int
    store: Store
    ledger: Ledger
    began: float
    observers: list[Callable[[], None]]
    open: list[Open] = field(default_factory=list)


@dataclass(frozen=True)
class Finished(Generic[P]):
    """A practice that is over: nothing is left to play."""

    policy: P

    def rounds(self) -> Iterator[int]:
        """None."""
        return iter(())


@dataclass(frozen=True)
class Open:
    """A stage at work: its ledger row where it is finished; what running totals were when this try began.

    `before` is what earlier tries had cost. A fit counts from its checkpoints on its own. `inner` is what stages inside
    this one have cost (measurements of a practice), which is theirs. `until`: the totals when its work ended, where it
    says so itself (`alone`).
    """

    key: str
    stage: Stage
    finished: Mapping[str, Any] | None
    usage: Callable[[], Mapping[str, int]]
    before: Mapping[str, float]
    inner: Counter[str] = field(default_factory=Counter)
    since: dict[str, float] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.since.update(self._totals())

    def _totals(self) -> dict[str, float]:
        return {"seconds": time.monotonic(), "cpu_s": time.process_time(), **self.usage()}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """See `Stage.alone`."""
        self.since.update(self._totals())
        try:
            yield
        finally:
            self.until.update(self._totals())

    def spent(self) -> dict[str, float]:
        """What the stage has cost in all: seconds, cpu_s, and the counts."""
        now = self.until or self._totals()
        now = {name: total - self.since.get(name, 0) for name, total in now.items()}
        return {name: value + self.before.get(name, 0) - self.inner[name] for name, value in now.items()}


class Run(Generic[P]):
    """See the module. Make one with `evolvent.local_run`, or hand in your own verbs.

    Args:
        folder: its directory; made if missing. One writer at a time (`Locked`).
        verbs: what `collect`, `fit`, `evaluate` and the others mean here.
        seed: all randomness derives from it and from names.
        settings: what the result of each verb depends on besides its arguments, by its name. A stage that was finished
            under other settings is done again.
    """

    def __init__(
        self, folder: Path, verbs: Verbs[P], *, seed: int = 0, settings: Mapping[str, object] | None = None
    ) -> None:
        self._verbs, self._settings = verbs, dict(settings or {})
        self._arm, self._round = "evolve", 0
        self._origins: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        with ExitStack() as undo:
            store = undo.enter_context(Store.open(folder / "trajectories", writing=True))
            ledger = Ledger(folder)
            if ledger.key_version > KEY_VERSION:
                raise ConfigError(
                    f"{folder} was written by a newer evolvent: version of its stage keys",
                    value=ledger.key_version,
                    expected=f"at most {KEY_VERSION}",
                    hint="update evolvent",
                )
            self._shared = Shared(folder, seed, store, ledger, time.monotonic(), [])
            undo.pop_all()  # it stays open until `close`

    @property
    def folder(self) -> Path:
        return self._shared.folder

    @property
    def seed(self) -> int:
        return self._shared.seed

    @property
    def store(self) -> Store:
        return self._shared.store

    def close(self) -> None:
        """Give the directory back."""
        self._shared.store.close()

    def __enter__(self) -> Run[P]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def observe(self, observer: Callable[[], None]) -> None:
        """Call this after every stage (a report is drawn again, say)."""
        self._shared.observers.append(observer)

    def arm(self, name: str) -> Run[P]:
        """The same run under another name: stages are recorded for this arm. Shared stages are still done once."""
        other: Run[P] = object.__new__(Run)
        other.__dict__.update(self.__dict__)
        other._arm, other._round = name, 0
        return other

    def rounds(self, count: int) -> Iterator[int]:
        """1, 2, ... count; stages called in between belong to that round."""
        for number in range(1, count + 1):
            self._round = number
            yield number

    # ------------------------------------------------------------------ the verbs

    def collect(
        self, policy: P, starts: Iterable[Start], *, temperature: float = 1.0, horizon: int | None = None
    ) -> list[Trajectory]:
        """Play the starts at a sampling temperature; returns their trajectories in the order of the starts.

        Args:
            horizon: most steps of an episode; None: what each world says.
        Raises:
            ConfigError: two starts of the same task and sample.
        """
        wanted = list(starts)

        def play(todo: list[Start], stage: Stage) -> Iterable[Trajectory]:
            return self._verbs.collect(policy, todo, stage, temperature=temperature, horizon=horizon)

        key = self._key("collect", policy, _told(wanted), (temperature, horizon))
        return self._played("collect", key, wanted, play)

    def search(self, policy: P, starts: Iterable[Start], how: Any, *, judge: P | None = None) -> list[Trajectory]:
        """Play the starts with a search instead of plain sampling; returns what each decided for, in their order.

        Args:
            how: the search (`rollout/search.py`); its `repr` must say all there is to it.
            judge: the policy whose head or labels value what the search looks at; None: the policy's own.
        Raises:
            ConfigError: two starts of the same task and sample; a search whose `repr` is an address in memory.
        """
        check_identity("search", how)
        wanted, other = list(starts), "" if judge is None else self.origin(judge)
        key = self._key("search", policy, _told(wanted), [how, other], text=[version_1_text(how), other])
        return self._played(
            "search", key, wanted, lambda todo, stage: self._verbs.search(policy, todo, stage, how=how, judge=judge)
        )

    def _played(
        self,
        verb: str,
        key: StageKey,
        wanted: Sequence[Start],
        play: Callable[[list[Start], Stage], Iterable[Trajectory]],
    ) -> list[Trajectory]:
        """The trajectories of a stage, in the order of their starts; what an interrupted try left is kept."""
        if not wanted:
            return []
        with self._stage(verb, key) as at:
            names = [trajectory_name(start, at.stage.name) for start in wanted]
            if len(set(names)) < len(names):
                twice = [name for name, count in Counter(names).items() if count > 1]
                raise ConfigError(
                    "two starts of the same task and sample",
                    value=twice[:5],
                    hint="give samples of one task different numbers",
                )
            found = dict(at.stage.done)
            if at.finished is None:
                todo = [start for start, name in zip(wanted, names, strict=True) if name not in found]
                found.update((trajectory.id, trajectory) for trajectory in play(todo, at.stage))
                outcomes = Counter(trajectory.success for trajectory in found.values())
                self._finish(at, {"episodes": len(found), "success": outcomes[True], "errors": outcomes[None]})
        return [found[name] for name in names]

    def label(self, policy: P, data: Sequence[Trajectory], how: Any) -> list[dict[str, Any]]:
        """What a way of labelling finds out about the spans of trajectories by having the policy go on from them.

        Args:
            data: by their tasks and what was written in them.
            how: the way (`reward/`); its `repr` must say all there is to it.
        Returns:
            JSON objects, those of one trajectory after those of the one before.
        Raises:
            ConfigError: a way whose `repr` is an address in memory; different trajectories of one id.
        """
        check_identity("labelling", how)
        contents = [_content(one) for one in data]
        if len({one.id for one in data}) < len(set(contents)):
            raise ConfigError("different trajectories of one id", value=f"{len(data)} trajectories", hint="rename them")
        with self._stage("label", self._key("label", policy, contents, how)) as at:
            path = at.stage.folder / "labels.jsonl"
            known = {row["of"]: row["rows"] for row in read_rows(path)}
            if at.finished is None:
                todo = [one for one in data if one.id not in known]
                for name, rows in self._verbs.label(policy, todo, at.stage, how=how):
                    known[name] = rows
                    append_line(path, {"of": name, "rows": rows}, durable=False)
                self._finish(at, {"trajectories": len(known), "rows": sum(map(len, known.values()))})
        return [row for one in data for row in known.get(one.id, ())]

    def fit(
        self,
        policy: P,
        data: Sequence[Any],
        objective: Any,
        *,
        weight: Weighting | None = None,
        tokens: int | None = None,
        lr_scale: float = 1.0,
    ) -> P:
        """Learn from data; returns the policy of the next version. The handed-in policy stays as it was.

        Args:
            data: trajectories, or parts (`learn/token_sequences.py`) of what was prepared for an objective.
            objective: what is minimised (`learn/objectives.py`).
            weight: learning weight of each trajectory; None: 1. Its `repr` must say all there is to it (a frozen
                dataclass with `__call__` does), because it tells a finished fit from another.
            tokens: stop after so many learned tokens; None: what the training config says.
            lr_scale: factor on the training config's learning rate.
        Raises:
            ConfigError: an objective or a weight whose `repr` is an address in memory.
        """
        check_identity("objective", objective)
        check_identity("weight", weight)
        key = self._key("fit", policy, [_content(t) for t in data], (objective, weight, tokens, lr_scale))
        with self._stage("fit", key) as at:
            kept = at.stage.folder / "policy"
            if at.finished is None:
                fitted = self._verbs.fit(
                    policy, data, at.stage, objective=objective, weight=weight, tokens=tokens, lr_scale=lr_scale
                )
                self._verbs.save(fitted, kept)
                self._finish(at, {"trajectories": len(data)})
            else:
                fitted = self._verbs.load(kept)
        self._origins[fitted] = key.version_1
        return fitted

    @contextmanager
    def practise(self, policy: P, setup: Any, inputs: Sequence[Any] = ()) -> Iterator[Any]:
        """Learn by acting, for as many rounds as the body goes through; the handed-in policy stays as it was.

        The body gets a practice (`rl/trainer.py`): `rounds()` begins after the last round that was saved, and its
        `policy` is the result. What it plays and learns belongs to this one stage; what it measures on the way is a
        stage of its own.

        Args:
            setup: objective, critic and settings; its `repr` must say all there is to it.
            inputs: what else tells this practice from another: ids of its tasks, say.
        Raises:
            ConfigError: a setup whose `repr` is an address in memory.
        """
        check_identity("practice", setup)
        with self._stage("practise", self._key("practise", policy, list(inputs), setup)) as at:
            kept = at.stage.folder / "policy"
            if at.finished is not None:
                self._round = int(at.finished["result"].get("round", self._round))
                yield Finished(self._verbs.load(kept))
                return
            practice = self._verbs.practise(policy, at.stage, setup=setup)
            try:
                yield practice
            finally:
                practice.close()
            self._verbs.save(practice.policy, kept)
            self._finish(at, {"rounds": getattr(practice, "iteration", 0), "round": self._round})

    def evaluate(
        self, policy: P, round: int | None = None, *, split: str | None = None, how: Any = None, judge: P | None = None
    ) -> list[Evaluation]:
        """Play the evaluation panels with this policy, or those of another split; the rows go to `results.jsonl`.

        Args:
            how, judge: a search instead of plain decoding, as for `search`.
        Raises:
            ConfigError: a search whose `repr` is an address in memory.
        """
        if round is not None:
            self._round = round
        check_identity("search", how)
        guided = {} if how is None else {"how": how, "judge": judge}
        if guided:
            other = "" if judge is None else self.origin(judge)
            text = [split, version_1_text(how), other]
            key = self._key("evaluate", policy, [self._round], [split, how, other], text=text)
        else:
            key = self._key("evaluate", policy, [self._round], split, text=split)
        path = self.folder / "results.jsonl"
        with self._stage("evaluate", key) as at:
            if at.finished is None:
                rows, shown = self._verbs.evaluate(policy, at.stage, split=split, **guided)
                self._results(at.stage, [_result_line(at.stage, row) for row in rows])
                self._show(at.stage, shown)
                self._finish(at, {"rows": len(rows)})
        found = [row for row in read_rows(path) if row["stage"] == at.stage.name]
        if not any(row["arm"] == at.stage.arm for row in found):  # another arm came to the same policy and played it
            found = [{**row, "arm": at.stage.arm} for row in found]
            self._results(at.stage, found)
        return [_evaluation(row) for row in found if row["arm"] == at.stage.arm]

    def _results(self, stage: Stage, lines: Sequence[Mapping[str, Any]]) -> None:
        """Put the rows of a stage and arm among the results, in place of any of an interrupted try."""
        path = self.folder / "results.jsonl"
        own = (stage.name, stage.arm)
        before = [row for row in read_rows(path) if (row["stage"], row["arm"]) != own]
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in [*before, *lines]))

    # ------------------------------------------------------------------ stages and the ledger

    def _key(
        self, verb: str, policy: P, inputs: Sequence[Any], options: object, *, text: object = _SAME_AS_OPTIONS
    ) -> StageKey:
        """Returns the key of a stage: digests of all that its result depends on.

        Args:
            options: arguments of the verb. text: the same as version 1 wrote it; by default the options' own text.
        """
        origin, arguments, settings = self.origin(policy), list(inputs), self._settings.get(verb, "")
        written = version_1_text(options) if text is _SAME_AS_OPTIONS else str(text)
        former = canonical_json([verb, origin, self.seed, arguments, written, _settings_text(settings)])
        present = [KEY_VERSION, verb, origin, self.seed, arguments, options, settings]
        return StageKey(fingerprint(present), hashlib.sha256(former.encode()).hexdigest()[:24])

    def origin(self, policy: P) -> str:
        """What tells a policy from others, in keys: of which stage it came, or what its weights are."""
        if policy not in self._origins:
            self._origins[policy] = self._verbs.origin(policy)
        return self._origins[policy]

    @contextmanager
    def _stage(self, verb: str, key: StageKey) -> Iterator[Open]:
        """Hands out the stage, with its ledger row where it is finished; the observers are called after a new one."""
        finished = self._shared.ledger.get(key.current) or self._shared.ledger.get(key.version_1)
        arm = "base" if self._round == 0 and verb != "practise" else self._arm
        place = arm if verb == "practise" else f"{arm}-{self._round}"  # a practice goes through rounds of its own
        name = str(finished["name"]) if finished else f"{place}-{verb}-{key.version_1[:6]}"
        folder = self.folder / "stages" / name
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        where = {"stage": name, "arm": arm, "round": self._round}

        def log(values: Mapping[str, Any]) -> None:
            self._log({**where, "kind": verb, **values})
            if verb != "fit" and finished is None and values.get("kind") != "stage":
                write_spent(folder, at.spent())

        known = self.store.trajectories(prefix=f"{name}/") if verb != "fit" else ()
        done = {t.id: t for t in known if t.error is None or t.error.kind != INTERRUPTED}
        seed = sample_seed(self.seed, key.version_1)
        stage = Stage(name, verb, arm, self._round, folder, seed, self.store, log, done, lambda: at.alone())
        before = read_spent(folder) if finished is None and verb != "fit" else {}
        at = Open(key.current, stage, finished, self._verbs.usage, before)
        self._shared.open.append(at)
        try:
            yield at
        finally:
            self._shared.open.pop()
            if verb != "fit" and self._shared.ledger.get(key.current) is None:
                write_spent(folder, at.spent())
            for outer in self._shared.open[-1:]:
                spent = at.spent()
                outer.inner.update({name: spent[name] - before.get(name, 0) for name in spent})
        for observer in self._shared.observers if finished is None else ():
            observer()

    def _finish(self, at: Open, result: Mapping[str, Any]) -> None:
        stage = at.stage
        spent = at.spent()
        counts = {name: round(value) for name, value in spent.items() if name not in ("seconds", "cpu_s")}
        row = {
            "key": at.key,
            "key_version": KEY_VERSION,
            "index": len(self._shared.ledger),
            "name": stage.name,
            "verb": stage.verb,
            "arm": stage.arm,
            "round": stage.round,
            "seconds": round(spent["seconds"], 3),
            "cpu_s": round(spent["cpu_s"], 3),
            "counts": counts,
            "result": dict(result),
        }
        self.store.flush()  # the ledger never knows more than the disk
        self._shared.ledger.append(row)
        stage.log({"kind": "stage", "step": row["index"], **counts})

    def _log(self, values: Mapping[str, Any]) -> None:
        spent = {"time_s": round(time.monotonic() - self._shared.began, 3), "cpu_s": round(time.process_time(), 3)}
        append_line(self.folder / "metrics.jsonl", {**spent, **values}, durable=False)

    def _show(self, stage: Stage, shown: Sequence[Mapping[str, Any]]) -> None:
        """Keep example episodes: of the first evaluation, and of each arm's latest."""
        path = self.folder / "examples.json"
        rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        rows = [row for row in rows if row["arm"] != stage.arm]
        rows += [{**row, "arm": stage.arm, "round": stage.round} for row in shown]
        write_atomic(path, json.dumps(rows))


def _result_line(stage: Stage, row: Evaluation) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in Evaluation.__slots__}
    return {"stage": stage.name, "arm": stage.arm, "round": stage.round, **values}


def _evaluation(row: Mapping[str, Any]) -> Evaluation:
    values = {name: row[name] for name in Evaluation.__slots__}
    values["outcomes"] = tuple((task, kind, success) for task, kind, success in row["outcomes"])
    return Evaluation(**values)


def _content(one: Any) -> str:
    """A digest of what is learned from: its id alone does not tell a trajectory from an edited one."""
    if isinstance(one, Trajectory):
        return hashlib.sha256(canonical_json(encode(one)).encode()).hexdigest()[:24]
    return str(one.digest)


def _told(starts: Sequence[Start]) -> list[Any]:
    """Starts, as a stage's key tells them."""
    return [[start.task.id, start.sample, str(start.branch)] for start in starts]


def _settings_text(settings: object) -> str:
    """Returns the settings of a verb as version 1 wrote them."""
    return settings if isinstance(settings, str) else getattr(settings, "version_1", version_1_text(settings))
