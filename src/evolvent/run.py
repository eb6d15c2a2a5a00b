"""A run: one directory with its seed, its metrics and its ledger of finished stages. Resuming is implemented only
here.

A method calls the operations of a backend, above all `collect`, `fit` and `evaluate`: in this process, against
world servers, or on a cluster. Each call is a stage. The name of a stage says when the method made the call;
its key is the digest of everything that its result depends on. A finished stage is not repeated: the same
method, started on the same directory, skips its finished stages and goes on where it stopped. Two arms that
share a stage (a method and its control share the cloning) run it once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from evolvent.backend import Backend, RunStage, Weighting
from evolvent.errors import ConfigError
from evolvent.files import append_line, disk_errors, write_atomic
from evolvent.identity import check_identity, fingerprint, user_code_fingerprint, version_1_text
from evolvent.rollout.evaluate import Evaluation
from evolvent.store.log import Ledger, read_rows, read_stage_cost, write_stage_cost
from evolvent.store.metrics import MAX_HTML_ROWS, MetricsTable, html_table, read_metrics
from evolvent.store.schema import INTERRUPTED, encode_trajectory
from evolvent.store.store import Store
from evolvent.trajectory import Json, JsonObject, Start, Task, Trajectory, canonical_json, sample_seed, trajectory_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from evolvent.learn.objectives import Objective
    from evolvent.learn.token_sequences import TokenSequence
    from evolvent.reward.labelling import LabellingConfig
    from evolvent.rl.trainer import PolicyTrainer, RLSpec
    from evolvent.search.settings import SearchConfig

P = TypeVar("P")

__all__ = [
    "ActiveStage",
    "Backend",
    "Evaluation",
    "FinishedTrainer",
    "MetricsTable",
    "Run",
    "RunStage",
    "RunState",
    "changed_code",
    "html_table",
    "record_code",
    "world_code",
]


_log = logging.getLogger(__name__)
_CODE_FILE = "code.json"  # digests of the user's code by world
_MAX_NAMES = 8  # stages that a line names
KEY_VERSION = 2
"""Version of the keys of finished stages: 1 hashed Python's `repr`, 2 hashes canonical JSON (`evolvent.identity`)."""
_SAME_AS_OPTIONS = object()


@dataclass(frozen=True)
class StageKey:
    """The keys that identify a stage in the ledger of its run.

    Attributes:
        current: its key in the ledger.
        version_1: the key that version 1 gave it. Seeds derive from it, so that a seed gives the same numbers as
            before, whatever the user's code.
        identity: the same with the user's code, where there is any. Names of stages and origins of policies derive from
            it.
        earlier: the keys under which runs of earlier versions may hold the stage.
    """

    current: str
    version_1: str
    identity: str
    earlier: tuple[str, ...]


@dataclass(frozen=True)
class RunState:
    """The state that all arms of a run share."""

    folder: Path
    seed: int
    store: Store
    ledger: Ledger
    start_time: float
    observers: list[Callable[[], None]]
    active_stages: list[ActiveStage] = field(default_factory=list)
    reused_stages: list[str] = field(default_factory=list)
    num_earlier_stages: int = 0
    untold_stages: list[str] = field(default_factory=list)
    mirrored_results: list[JsonObject] = field(default_factory=list)
    arms: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FinishedTrainer(Generic[P]):
    """A policy trainer whose stage is finished already: no iteration is left."""

    policy: P

    def iterations(self) -> Iterator[int]:
        """Yields nothing."""
        return iter(())


@dataclass(frozen=True)
class ActiveStage:
    """A running stage, with its ledger row where it is finished already, and the running totals at its start.

    Attributes:
        key: its key in the ledger.
        ledger_row: its row in the ledger; None: the stage is not finished.
        usage: returns the backend's running totals.
        earlier_cost: cost of earlier, interrupted attempts. A fit counts it itself, from its checkpoints.
        nested_cost: cost of stages inside this stage (evaluations during RL training), which is charged to them.
        start_totals: the totals when this attempt began.
        end_totals: the totals when its work ended, where the stage marks its end itself (`exclusive`).
    """

    key: str
    stage: RunStage
    ledger_row: Mapping[str, Json] | None
    usage: Callable[[], Mapping[str, int]]
    earlier_cost: Mapping[str, float]
    nested_cost: Counter[str] = field(default_factory=Counter)
    start_totals: dict[str, float] = field(default_factory=dict)
    end_totals: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start_totals.update(self._read_totals())

    def _read_totals(self) -> dict[str, float]:
        return {"seconds": time.monotonic(), "cpu_s": time.process_time(), **self.usage()}

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Measures a block as the cost of the stage; see `RunStage.exclusive`."""
        self.start_totals.update(self._read_totals())
        try:
            yield
        finally:
            self.end_totals.update(self._read_totals())

    def compute_cost(self) -> dict[str, float]:
        """Returns the cost of the stage over all attempts: seconds, cpu_s, and the backend's counts."""
        totals = self.end_totals or self._read_totals()
        totals = {name: total - self.start_totals.get(name, 0) for name, total in totals.items()}
        return {name: value + self.earlier_cost.get(name, 0) - self.nested_cost[name] for name, value in totals.items()}


class Run(Generic[P]):
    """A directory in which the stages of a method run and resume; see the module.

    Build a run with `evolvent.local_run`, or pass your own backend.

    Args:
        folder: its directory; created if missing. It has one writer at a time (`Locked`).
        backend: runs `collect`, `fit`, `evaluate` and the other operations.
        seed: all randomness derives from it and from names.
        settings: by operation, the settings that its result depends on beside its arguments. A stage that was
            finished under other settings runs again.
        code: digests of the user's code by the name of the world that runs it (`world_code`); None: those of the
            backend's worlds. A stage that other code finished runs again, and the change is told.
        tell: receives lines for the user: which stages are read and not done again, and which code has changed; None:
            warnings of this module's logger.
        method: what the run does, for `run.json`, from which lists and reports take name, method, state and seed; None:
            the caller keeps that record.
        writing: whether this process writes the folder. Of several ranks that run a method together the first does;
            another one opens the run when the first has, reads what is finished, and writes nothing.
    """

    def __init__(
        self,
        folder: Path | str,
        backend: Backend[P],
        *,
        seed: int = 0,
        settings: Mapping[str, object] | None = None,
        code: Mapping[str, str] | None = None,
        tell: Callable[[str], None] | None = None,
        method: str | None = None,
        writing: bool = True,
    ) -> None:
        folder = Path(folder)
        self._method, self._writing = method if writing else None, writing
        self._verbs, self._settings = backend, dict(settings or {})
        self._tell = tell or partial(_log.warning, "%s")
        self._arm, self._round = "evolve", 0
        self._origins: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        with ExitStack() as exit_stack:
            store = exit_stack.enter_context(Store.open(folder / "trajectories", writing=writing))
            ledger = Ledger(folder, writing=writing)
            if ledger.key_version > KEY_VERSION:
                raise ConfigError(
                    f"{folder} was written by a newer evolvent: stage key version too high",
                    value=ledger.key_version,
                    expected=f"at most {KEY_VERSION}",
                    hint="update evolvent",
                )
            self._shared = RunState(folder, seed, store, ledger, time.monotonic(), [], num_earlier_stages=len(ledger))
            code = world_code(getattr(backend, "worlds", {})) if code is None else code
            changed_names = ", ".join(changed_code(folder, code))
            # Stages that were finished before code was recorded are taken to be of the code that is there now.
            unkeyed_code = record_code(folder, code, is_unkeyed=len(ledger) > 0, writing=writing)
            self._code = {} if code == unkeyed_code else dict(code)
            if changed_names and len(ledger):
                self._tell(
                    f"the code of {changed_names} has changed since the earlier run in {folder}: "
                    "stages that depend on it are done again"
                )
            if not writing:
                self._shared.mirrored_results.extend(read_rows(folder / "results.jsonl"))
            self._record_state("running")
            exit_stack.pop_all()  # it stays open until `close`

    @property
    def folder(self) -> Path:
        return self._shared.folder

    @property
    def seed(self) -> int:
        return self._shared.seed

    @property
    def store(self) -> Store:
        return self._shared.store

    @property
    def reused_stages(self) -> Sequence[str]:
        """Returns the names of the stages that were read from an earlier run in this folder, and not done again."""
        return tuple(self._shared.reused_stages)

    def close(self) -> None:
        """Releases the directory."""
        self._tell_reused_stages()
        self._shared.store.close()

    def _tell_reused_stages(self) -> None:
        """Tells which stages were read since the last time: before a new stage, and at the end."""
        names = list(self._shared.untold_stages)
        self._shared.untold_stages.clear()
        if names:
            others = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            listed = ", ".join(names[:_MAX_NAMES])
            self._tell(f"read from the earlier run in {self.folder}, not done again: {listed}{others}")

    def __enter__(self) -> Run[P]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        is_interrupt = kind is not None and not issubclass(kind, Exception)
        try:
            self._record_state("interrupted" if is_interrupt else "finished" if kind is None else "failed")
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, seed={self.seed}, {len(self._shared.ledger)} finished stages)"

    def _repr_html_(self) -> str:
        stages = read_rows(self.folder / "stages.jsonl")
        rows = [(row["name"], row["verb"], f"{row['seconds']:.1f} s") for row in stages[-MAX_HTML_ROWS:]]
        return f"<p>{escape(repr(self))}</p>{html_table(('stage', 'verb', 'time'), rows)}"

    def metrics(self, kind: str | None = None) -> MetricsTable:
        """Returns the numbers that the run logged so far, one dict a row, with `to_pandas()` and `to_arrow()`.

        Args:
            kind: rows of one kind alone, such as "fit", "practise" (an iteration of RL) or "evaluate"; None: all.
        """
        return read_metrics(self.folder, kind)

    def plot(self, *names: str, kind: str | None = None) -> Figure:
        """Draws numbers that the run logged so far, as `run.metrics(kind).plot(*names)`; it needs `evolvent[plot]`.

        Args:
            names: logged numbers, such as "return" or "loss"; none: those of success, return and loss that there are.
            kind: rows of one kind alone; None: all.
        """
        return self.metrics(kind).plot(*names)

    def _record_state(self, state: str) -> None:
        """Writes `run.json`, where nobody else keeps that record."""
        if self._method is None:
            return
        path, earlier = self.folder / "run.json", dict[str, Json]()
        with suppress(OSError, ValueError):
            earlier = dict(json.loads(path.read_text(encoding="utf-8")))
        created = earlier.get("created") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        names = {"verb": "python", "method": self._method, "name": self.folder.name, "seed": self.seed}
        arms = list(dict.fromkeys([*cast("list[str]", earlier.get("arms", [])), *self._shared.arms]))
        write_atomic(path, json.dumps({**earlier, **names, "created": created, "state": state, "arms": arms}, indent=1))

    def observe(self, observer: Callable[[], None]) -> None:
        """Calls the observer after every new stage, for instance to draw a report again."""
        self._shared.observers.append(observer)

    def arm(self, name: str) -> Run[P]:
        """Returns the same run for another arm: its stages carry this name; stages that arms share still run once."""
        arm_run: Run[P] = object.__new__(Run)
        arm_run.__dict__.update(self.__dict__)
        arm_run._arm, arm_run._round = name, 0
        return arm_run

    def rounds(self, count: int) -> Iterator[int]:
        """Yields 1, 2, ... count; stages that are called in between belong to that round."""
        for number in range(1, count + 1):
            self._round = number
            yield number

    # ------------------------------------------------------------------ the verbs

    def collect(
        self, policy: P, starts: Iterable[Start | Task], *, temperature: float = 1.0, horizon: int | None = None
    ) -> list[Trajectory]:
        """Plays the starts at a sampling temperature; returns their trajectories in the order of the starts.

        Args:
            starts: starts, or tasks that are played once.
            horizon: most steps of an episode; None: what each world says.
        Raises:
            ConfigError: two starts have the same task and sample.
        """
        start_list = [Start(start) if isinstance(start, Task) else start for start in starts]

        def play(todo: list[Start], stage: RunStage) -> Iterable[Trajectory]:
            return self._verbs.collect(policy, todo, stage, temperature=temperature, horizon=horizon)

        key = self._compute_key("collect", policy, _key_of(start_list), (temperature, horizon))
        return self._play_starts("collect", key, start_list, play)

    def search(
        self, policy: P, starts: Iterable[Start], search: SearchConfig, *, value_model: P | None = None
    ) -> list[Trajectory]:
        """Plays the starts with a search instead of plain sampling; returns the chosen trajectories in the order of
        the starts.

        Args:
            search: the search (`rollout/search.py`); its `repr` must tell it from every other search.
            value_model: the policy whose value head or labels estimate the values of states; None: the policy itself.
        Raises:
            ConfigError: two starts have the same task and sample, or the search's `repr` is an address in memory.
        """
        check_identity("search", search)
        start_list, value_model_origin = list(starts), "" if value_model is None else self.origin(value_model)
        key = self._compute_key(
            "search",
            policy,
            _key_of(start_list),
            [search, value_model_origin],
            text=[version_1_text(search), value_model_origin],
        )
        return self._play_starts(
            "search",
            key,
            start_list,
            lambda todo, stage: self._verbs.search(policy, todo, stage, search=search, value_model=value_model),
        )

    def _play_starts(
        self,
        verb: str,
        key: StageKey,
        starts: Sequence[Start],
        play: Callable[[list[Start], RunStage], Iterable[Trajectory]],
    ) -> list[Trajectory]:
        """Returns the trajectories of a stage in the order of its starts; trajectories of an interrupted attempt are
        reused.
        """
        if not starts:
            return []
        with self._open_stage(verb, key) as active_stage:
            names = [trajectory_name(start, active_stage.stage.name) for start in starts]
            if len(set(names)) < len(names):
                duplicates = [name for name, count in Counter(names).items() if count > 1]
                raise ConfigError(
                    "two starts have the same task and sample",
                    value=duplicates[:5],
                    hint="give each sample of a task a different number",
                )
            trajectories = dict(active_stage.stage.finished)
            if active_stage.ledger_row is None:
                todo = [start for start, name in zip(starts, names, strict=True) if name not in trajectories]
                trajectories.update((trajectory.id, trajectory) for trajectory in play(todo, active_stage.stage))
                outcomes = Counter(trajectory.success for trajectory in trajectories.values())
                self._finish_stage(
                    active_stage, {"episodes": len(trajectories), "success": outcomes[True], "errors": outcomes[None]}
                )
        return [trajectories[name] for name in names]

    def label(self, policy: P, data: Sequence[Trajectory], labeler: LabellingConfig) -> list[dict[str, Json]]:
        """Labels the spans of trajectories by letting the policy continue from them.

        Args:
            data: trajectories; their tasks and contents are part of the stage's key.
            labeler: the labeling method (`reward/`); its `repr` must tell it from every other labeler.
        Returns:
            JSON objects, in the order of the trajectories.
        Raises:
            ConfigError: the labeler's `repr` is an address in memory, or different trajectories share an id.
        """
        check_identity("labelling", labeler)
        contents = [_digest_input(trajectory) for trajectory in data]
        if len({trajectory.id for trajectory in data}) < len(set(contents)):
            raise ConfigError(
                "different trajectories have the same id",
                value=f"{len(data)} trajectories",
                hint="rename the trajectories",
            )
        with self._open_stage("label", self._compute_key("label", policy, contents, labeler)) as active_stage:
            path = active_stage.stage.folder / "labels.jsonl"
            rows_by_trajectory = {row["of"]: row["rows"] for row in read_rows(path)}
            if active_stage.ledger_row is None:
                todo = [trajectory for trajectory in data if trajectory.id not in rows_by_trajectory]
                for name, rows in self._verbs.label(policy, todo, active_stage.stage, labeler=labeler):
                    rows_by_trajectory[name] = rows
                    if self._writing:
                        append_line(path, {"of": name, "rows": rows}, durable=False)
                self._finish_stage(
                    active_stage,
                    {"trajectories": len(rows_by_trajectory), "rows": sum(map(len, rows_by_trajectory.values()))},
                )
        return [row for trajectory in data for row in rows_by_trajectory.get(trajectory.id, ())]

    def fit(
        self,
        policy: P,
        data: Sequence[Trajectory | TokenSequence],
        objective: Objective,
        *,
        weight: Weighting | None = None,
        tokens: int | None = None,
        lr_scale: float = 1.0,
    ) -> P:
        """Trains on data and returns the policy of the next version; the policy that was passed in is unchanged.

        Args:
            data: trajectories, or parts (`learn/token_sequences.py`) of what was prepared for an objective.
            objective: what is minimized (`learn/objectives.py`).
            weight: learning weight of each trajectory; None: 1. Its `repr` must say all there is to it (a frozen
                dataclass with `__call__` does), because it tells a finished fit from another.
            tokens: stop after so many learned tokens; None: what the training config says.
            lr_scale: factor on the training config's learning rate.
        Raises:
            ConfigError: an objective or a weight whose `repr` is an address in memory.
        """
        check_identity("objective", objective)
        check_identity("weight", weight)
        key = self._compute_key(
            "fit",
            policy,
            [_digest_input(training_input) for training_input in data],
            (objective, weight, tokens, lr_scale),
        )
        with self._open_stage("fit", key) as active_stage:
            policy_folder = active_stage.stage.folder / "policy"
            if active_stage.ledger_row is None:
                fitted = self._verbs.fit(
                    policy,
                    data,
                    active_stage.stage,
                    objective=objective,
                    weight=weight,
                    tokens=tokens,
                    lr_scale=lr_scale,
                )
                self._verbs.save(fitted, policy_folder)
                self._finish_stage(active_stage, {"trajectories": len(data)})
            else:
                fitted = self._verbs.load(policy_folder)
        self._origins[fitted] = key.identity
        return fitted

    @contextmanager
    def train_rl(self, policy: P, spec: RLSpec, inputs: Sequence[object] = ()) -> Iterator[PolicyTrainer]:
        """Yields a trainer that learns by acting, for as many iterations as the body runs; the input policy is
        unchanged.

        The trainer is a `PolicyTrainer` (`rl/trainer.py`): `iterations()` begins after the last saved iteration, and
        `policy` is the result. Its rollouts and updates belong to this stage; each evaluation on the way is a stage of
        its own.

        Args:
            spec: objective, critic and settings; its `repr` must tell it from every other spec.
            inputs: further values that tell this stage from others, such as the ids of its tasks.
        Raises:
            ConfigError: the spec's `repr` is an address in memory.
        """
        check_identity("practice", spec)
        with self._open_stage("practise", self._compute_key("practise", policy, list(inputs), spec)) as active_stage:
            policy_folder = active_stage.stage.folder / "policy"
            if active_stage.ledger_row is not None:
                self._round = cast("dict[str, int]", active_stage.ledger_row["result"]).get("round", self._round)
                yield cast("PolicyTrainer", FinishedTrainer(self._verbs.load(policy_folder)))
                return
            trainer = self._verbs.train_rl(policy, active_stage.stage, spec=spec)
            try:
                yield trainer
            finally:
                trainer.close()
            self._verbs.save(cast("P", trainer.policy), policy_folder)
            self._finish_stage(active_stage, {"rounds": getattr(trainer, "iteration", 0), "round": self._round})

    def evaluate(
        self,
        policy: P,
        round: int | None = None,
        *,
        split: str | None = None,
        search: SearchConfig | None = None,
        value_model: P | None = None,
    ) -> list[Evaluation]:
        """Plays the evaluation panels with this policy, or those of another split; the rows go to `results.jsonl`.

        Args:
            search, value_model: play with a search instead of plain decoding, as in `search`.
        Raises:
            ConfigError: the search's `repr` is an address in memory.
        """
        if round is not None:
            self._round = round
        check_identity("search", search)
        if search is not None:
            value_model_origin = "" if value_model is None else self.origin(value_model)
            text = [split, version_1_text(search), value_model_origin]
            key = self._compute_key("evaluate", policy, [self._round], [split, search, value_model_origin], text=text)
        else:
            key = self._compute_key("evaluate", policy, [self._round], split, text=split)
        with self._open_stage("evaluate", key) as active_stage:
            if active_stage.ledger_row is None:
                stage = active_stage.stage
                rows, examples = (
                    self._verbs.evaluate(policy, stage, split=split)
                    if search is None
                    else self._verbs.evaluate(policy, stage, split=split, search=search, value_model=value_model)
                )
                self._write_results(active_stage.stage, [_result_line(active_stage.stage, row) for row in rows])
                self._save_examples(active_stage.stage, examples)
                self._finish_stage(active_stage, {"rows": len(rows)})
        result_rows = [row for row in self._read_results() if row["stage"] == active_stage.stage.name]
        if not any(
            row["arm"] == active_stage.stage.arm for row in result_rows
        ):  # another arm came to the same policy and played it
            result_rows = [{**row, "arm": active_stage.stage.arm} for row in result_rows]
            self._write_results(active_stage.stage, result_rows)
        return [Evaluation.from_row(row) for row in result_rows if row["arm"] == active_stage.stage.arm]

    def _write_results(self, stage: RunStage, lines: Sequence[Mapping[str, object]]) -> None:
        """Writes the rows of a stage and arm to the results and replaces rows of an interrupted attempt."""
        stage_and_arm = (stage.name, stage.arm)
        other_rows = [row for row in self._read_results() if (row["stage"], row["arm"]) != stage_and_arm]
        text = "".join(json.dumps(line) + "\n" for line in [*other_rows, *lines])
        if self._writing:
            write_atomic(self.folder / "results.jsonl", text)
        else:
            self._shared.mirrored_results[:] = map(json.loads, text.splitlines())

    def _read_results(self) -> Sequence[JsonObject]:
        return read_rows(self.folder / "results.jsonl") if self._writing else self._shared.mirrored_results

    # ------------------------------------------------------------------ stages and the ledger

    def _compute_key(
        self, verb: str, policy: P, inputs: Sequence[object], options: object, *, text: object = _SAME_AS_OPTIONS
    ) -> StageKey:
        """Returns the key of a stage: digests of everything that its result depends on.

        Args:
            options: arguments of the operation.
            text: the same as version 1 wrote it; by default the options' own text.
        """
        origin, arguments, settings = self.origin(policy), list(inputs), self._settings.get(verb, "")
        options_text = version_1_text(options) if text is _SAME_AS_OPTIONS else str(text)
        version_1_json = canonical_json([verb, origin, self.seed, arguments, options_text, _settings_text(settings)])
        version_1 = hashlib.sha256(version_1_json.encode()).hexdigest()[:24]
        values = [KEY_VERSION, verb, origin, self.seed, arguments, options, settings]
        plain_key = fingerprint(values)
        world_code = {} if verb == "fit" else self._code
        # A weight, an objective or a search of the user's is code too.
        option_code = list(map(user_code_fingerprint, options if isinstance(options, list | tuple) else [options]))
        if not world_code and not any(option_code):
            return StageKey(plain_key, version_1, version_1, (version_1,))
        code = [world_code, option_code]
        identity = hashlib.sha256(canonical_json([version_1, code]).encode()).hexdigest()[:24]
        return StageKey(fingerprint([*values, code]), version_1, identity, () if world_code else (plain_key, version_1))

    def origin(self, policy: P) -> str:
        """Returns the text that identifies a policy in keys: the stage that it came from, or a digest of its
        weights.
        """
        if policy not in self._origins:
            self._origins[policy] = self._verbs.origin(policy)
        return self._origins[policy]

    @contextmanager
    def _open_stage(self, verb: str, key: StageKey) -> Iterator[ActiveStage]:
        """Yields the stage, with its ledger row where it is finished; calls the observers after a new stage."""
        keys = (key.current, *key.earlier)
        finished = next((row for row in map(self._shared.ledger.get, keys) if row is not None), None)
        arm = "base" if self._round == 0 and verb != "practise" else self._arm
        prefix = arm if verb == "practise" else f"{arm}-{self._round}"  # a practice goes through rounds of its own
        self._shared.arms.extend({arm} - set(self._shared.arms))
        name = str(finished["name"]) if finished else f"{prefix}-{verb}-{key.identity[:6]}"
        if finished and int(cast("int", finished.get("index", 0))) < self._shared.num_earlier_stages:
            self._shared.reused_stages.append(name)
            if name not in self._shared.reused_stages[:-1]:  # each once, whatever arms share it
                self._shared.untold_stages.append(name)
        if finished is None:
            self._tell_reused_stages()
        folder = self.folder / "stages" / name
        if self._writing:
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        log_fields = {"stage": name, "arm": arm, "round": self._round}

        def log(values: Mapping[str, object]) -> None:
            if not self._writing:
                return
            self._append_metrics({**log_fields, "kind": verb, **values})
            if verb != "fit" and finished is None and values.get("kind") != "stage":
                write_stage_cost(folder, active_stage.compute_cost())

        stored = self.store.trajectories(prefix=f"{name}/") if verb != "fit" else ()
        finished_trajectories = {t.id: t for t in stored if t.error is None or t.error.kind != INTERRUPTED}
        seed = sample_seed(self.seed, key.version_1)
        stage = RunStage(
            name,
            verb,
            arm,
            self._round,
            folder,
            seed,
            self.store,
            log,
            finished_trajectories,
            lambda: active_stage.exclusive(),
        )
        earlier_cost = read_stage_cost(folder) if finished is None and verb != "fit" else {}
        active_stage = ActiveStage(key.current, stage, finished, self._verbs.usage, earlier_cost)
        self._shared.active_stages.append(active_stage)
        try:
            yield active_stage
        finally:
            self._shared.active_stages.pop()
            if self._writing and verb != "fit" and self._shared.ledger.get(key.current) is None:
                write_stage_cost(folder, active_stage.compute_cost())
            for outer in self._shared.active_stages[-1:]:
                spent = active_stage.compute_cost()
                outer.nested_cost.update({name: spent[name] - earlier_cost.get(name, 0) for name in spent})
        for observer in self._shared.observers if finished is None else ():
            observer()

    def _finish_stage(self, active_stage: ActiveStage, result: Mapping[str, object]) -> None:
        stage = active_stage.stage
        cost = active_stage.compute_cost()
        counts = {name: round(value) for name, value in cost.items() if name not in ("seconds", "cpu_s")}
        row = {
            "key": active_stage.key,
            "key_version": KEY_VERSION,
            "index": len(self._shared.ledger),
            "name": stage.name,
            "verb": stage.verb,
            "arm": stage.arm,
            "round": stage.round,
            "seconds": round(cost["seconds"], 3),
            "cpu_s": round(cost["cpu_s"], 3),
            "counts": counts,
            "result": dict(result),
        }
        if self._writing:
            self.store.flush()  # the ledger never knows more than the disk
        self._shared.ledger.append(row)
        stage.log({"kind": "stage", "step": row["index"], **counts})

    def _append_metrics(self, values: Mapping[str, object]) -> None:
        elapsed = {
            "time_s": round(time.monotonic() - self._shared.start_time, 3),
            "cpu_s": round(time.process_time(), 3),
        }
        append_line(self.folder / "metrics.jsonl", {**elapsed, **values}, durable=False)

    def _save_examples(self, stage: RunStage, examples: Sequence[Mapping[str, Json]]) -> None:
        """Stores example episodes: those of the first evaluation, and those of each arm's latest."""
        if not self._writing:
            return
        path = self.folder / "examples.json"
        rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        rows = [row for row in rows if row["arm"] != stage.arm]
        rows += [{**row, "arm": stage.arm, "round": stage.round} for row in examples]
        write_atomic(path, json.dumps(rows))


def world_code(worlds: Mapping[str, object]) -> dict[str, str]:
    """Returns the digests of the user's code that worlds run, by the worlds' names: a world's own `fingerprint`, or the
    source of its class, rewards and graders. Worlds of installed packages have none.
    """
    fingerprints = {
        name: getattr(world, "fingerprint", None) or user_code_fingerprint(world) for name, world in worlds.items()
    }
    return {name: str(value) for name, value in sorted(fingerprints.items()) if value is not None}


def changed_code(folder: Path, code: Mapping[str, str]) -> list[str]:
    """Returns the names whose digests differ from those that a run folder records.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> record_code(folder, {"guess": "1"})
    >>> changed_code(folder, {"guess": "2", "other": "1"})
    ['guess']
    """
    recorded = _read_code(folder).get("worlds") or {}
    return [name for name, digest in code.items() if recorded.get(name, digest) != digest]


def record_code(
    folder: Path, code: Mapping[str, str], *, is_unkeyed: bool = False, writing: bool = True
) -> dict[str, str] | None:
    """Records the digests of the user's code (`world_code`) in a run folder.

    Args:
        is_unkeyed: whether the folder holds stages whose keys say nothing about code, if it has no record yet.
        writing: whether the record is written.
    Returns:
        the code that such stages are taken to be of; None: there are none.
    """
    record = _read_code(folder)
    unkeyed = record.get("unkeyed", dict(code) if is_unkeyed and code and not record else None)
    new_record = {"worlds": {**(record.get("worlds") or {}), **code}, "unkeyed": unkeyed}
    if writing and code and new_record != record:
        write_atomic(folder / _CODE_FILE, json.dumps(new_record, indent=1))
    return unkeyed


def _read_code(folder: Path) -> dict[str, dict[str, str] | None]:
    with suppress(OSError, ValueError):
        return dict(json.loads((folder / _CODE_FILE).read_text(encoding="utf-8")))
    return {}  # no code was recorded


def _result_line(stage: RunStage, row: Evaluation) -> dict[str, Json]:
    values = {name: getattr(row, name) for name in Evaluation.__slots__}
    if row.mean_return is None:
        del values["mean_return"]
    if not row.metrics:
        del values["metrics"]
    return {"stage": stage.name, "arm": stage.arm, "round": stage.round, **values}


def _digest_input(training_input: Trajectory | TokenSequence) -> str:
    """Returns a digest of a training input, because an id alone does not tell a trajectory from an edited one."""
    if isinstance(training_input, Trajectory):
        return hashlib.sha256(canonical_json(encode_trajectory(training_input)).encode()).hexdigest()[:24]
    return str(training_input.digest)


def _key_of(starts: Sequence[Start]) -> list[object]:
    """Returns the starts as they appear in a stage's key."""
    return [[start.task.id, start.sample, str(start.branch)] for start in starts]


def _settings_text(settings: object) -> str:
    """Returns the settings of a verb as version 1 wrote them."""
    return settings if isinstance(settings, str) else getattr(settings, "version_1", version_1_text(settings))
