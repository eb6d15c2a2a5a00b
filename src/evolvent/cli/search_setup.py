"""Who searches: a policy in this process or behind an endpoint, and who judges; what `evolvent search` builds of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import Field, SecretStr, model_validator

from evolvent.belief.named import read_detector
from evolvent.cli.registry import POLICIES, model_folder, policy
from evolvent.cli.settings import OverWorlds
from evolvent.engine.asks import Engine
from evolvent.engine.fitting import engine_for
from evolvent.engine.multi_model import Several
from evolvent.engine.remote import RemoteEngine
from evolvent.engine.servers import ServerDialect, endpoint_type
from evolvent.errors import ConfigError, Problem
from evolvent.models.policy import Policy, load_policy
from evolvent.rollout.search import Player
from evolvent.scale.endpoint_backend import check_tokenizer
from evolvent.scale.judging import JUDGE, judged, scorer_of
from evolvent.search.settings import ForestConfig
from evolvent.search.solving import check_solver
from evolvent.worlds.base import World

__all__ = ["SearchedBy", "Searchers", "searchers"]

_KEY = "OPENAI_API_KEY"
_ROWS = 256  # an engine's memory grows with its rows


class SearchedBy(OverWorlds):
    """The settings of who searches and how."""

    policy: str = Field(default="xs", description="who writes: a size, a model folder, or a run")
    judge: str = Field(
        default="", description="who values, or completes for rStar: a model folder or a run; none: the policy itself"
    )
    endpoint: str = Field(default="", description="URL of an endpoint that serves the policy; none: this process does")
    model: str = Field(default="", description="what that endpoint calls it")
    dialect: ServerDialect = Field(default="openai", description="what the endpoints speak")
    judge_endpoint: str = Field(default="", description="URL of an endpoint that serves the judge of rStar's solutions")
    judge_model: str = Field(default="", description="what that endpoint calls it")
    key_env: str = Field(default=_KEY, description="the environment variable that holds the key of the endpoints")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    slots: int = Field(default=64, ge=1, description="searches that go side by side")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    search: ForestConfig = Field(default_factory=ForestConfig, description="the search")

    @model_validator(mode="after")
    def _served(self) -> SearchedBy:
        wrong = []
        if bool(self.endpoint) != bool(self.model):
            wrong.append("an endpoint needs both --endpoint URL and --model NAME")
        if self.endpoint and self.policy in POLICIES:
            wrong.append("beside an endpoint --policy names the folder of the model that it serves, for its tokenizer")
        if self.endpoint and self.search.level == "token":
            wrong.append("an endpoint gives no logits: token-level search needs the model here")
        if self.endpoint and self.search.judged and self.search.value == "judge" and not self.judge:
            wrong.append("an endpoint gives no values: name --judge FOLDER, or --search.value rollouts")
        if bool(self.judge_endpoint) != bool(self.judge_model) or (self.judge_endpoint and not self.judge):
            wrong.append(
                "a judge behind an endpoint needs --judge_endpoint URL, --judge_model NAME and, for its "
                "tokenizer, --judge FOLDER"
            )
        if self.judge_endpoint and (self.search.value == "judge" or self.search.rstar.discriminator != "judge"):
            wrong.append(
                "a judge behind an endpoint gives no values, it completes solutions: "
                "--search.rstar.discriminator judge --search.value none"
            )
        if self.search.rstar.discriminator == "judge" and not self.judge:
            wrong.append("a discriminator 'judge' needs --judge FOLDER; the policy itself is 'policy'")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


@dataclass(frozen=True)
class Searchers:
    """Who writes, and who values.

    Args:
        policy, engine: who writes; the engine also answers for a judge that is another one.
        judge: who values; the policy itself where nobody else was named.
    """

    policy: Policy
    engine: Engine
    judge: Policy

    def player(self, how: ForestConfig, *, stop: str = "") -> Player:
        """Who searches with these settings.

        Args:
            stop: the detector that ends its votes early; empty: none.
        Raises:
            ConfigError: a judge without the head or the words that `how.score` reads; an unknown detector; rStar with a
                model that cannot read its prompts.
        """
        model = None if self.judge is self.policy else JUDGE
        scorer = scorer_of(self.judge, how, model=model) if how.judged else None
        second = how.solves and how.rstar.discriminator == "judge" and model is not None
        if how.solves:
            check_solver(self.policy)
        if second:
            check_solver(self.judge, what="judge")
        return Player(
            self.policy,
            self.engine,
            scorer,
            read_detector(stop) if stop else None,
            (self.judge, JUDGE) if second else None,
        )


def _rows(config: SearchedBy) -> int:
    """Rows of an engine: every search that is under way samples `width` children, or rStar's votes, at once."""
    wide = config.search.rstar.votes if config.search.solves else config.search.width
    return min(_ROWS, config.slots * wide)


@contextmanager
def searchers(config: SearchedBy, worlds: Mapping[str, World]) -> Iterator[Searchers]:
    """The policies that the settings name, loaded; what they hold is given back at the end.

    Raises:
        ConfigError, Incomplete: a policy that cannot search, or an endpoint without the model.
        VocabularyMismatch: one that does not know the words of a world, or a judge with another tokenizer that is to
            give values; one that completes solutions may have its own.
        EndpointError, TokensMissing: an endpoint that does not answer, or without token ids.
    """
    torch.set_num_threads(config.threads)
    writer = policy(config.policy, list(worlds.values()), seed=config.seed)
    judge = load_policy(_folder(config.judge)) if config.judge else writer
    with ExitStack() as open_:
        engine = open_.enter_context(_remote(config, writer)) if config.endpoint else None
        engine = engine or engine_for(writer, slots=_rows(config))
        if judge is not writer:
            away = config.judge_endpoint
            second = open_.enter_context(_remote(config, judge, second=True)) if away else None
            second = second or engine_for(judge, slots=_rows(config))
            if config.search.value == "judge":
                engine = judged(writer, judge, engine=engine, judging=second)
            else:
                engine = Several({"policy": engine, JUDGE: second})
        yield Searchers(writer, engine, judge)


def _folder(judge: str) -> Path:
    try:
        return model_folder(judge)
    except ConfigError as error:
        problem = Problem("judge", f"unknown judge {judge!r}", "a model folder, or the folder of a run")
        raise ConfigError([problem]) from error


@contextmanager
def _remote(config: SearchedBy, served: Policy, *, second: bool = False) -> Iterator[Engine]:
    """The engine of a policy behind the endpoint, or behind the second one."""
    key = os.environ.get(config.key_env)
    secret = SecretStr(key) if key else None
    url, model = (config.judge_endpoint, config.judge_model) if second else (config.endpoint, config.model)
    with endpoint_type(config.dialect)(url, model, key=secret, tokens=True, processed=True) as endpoint:
        endpoint.check()
        check_tokenizer(endpoint, served)
        engine = RemoteEngine(
            endpoint,
            context=served.context,
            vocabulary=len(served.tokenizer),
            version=served.version,
            threads=config.slots,
        )
        try:
            yield engine
        finally:
            engine.close()
