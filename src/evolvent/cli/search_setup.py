"""The setup of `evolvent search`: the searching policy, here or behind an endpoint, and the judge."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, SecretStr, model_validator

from evolvent.belief.named import parse_detector
from evolvent.cli.setup.prompting import PromptConfig
from evolvent.cli.setup.registry import POLICIES, check_policy_name, resolve_model_folder, resolve_policy
from evolvent.cli.setup.settings import ModelConfig, WorldsConfig
from evolvent.engine.asks import Engine
from evolvent.engine.servers import ServerDialect, endpoint_type
from evolvent.errors import ConfigError, Problem
from evolvent.models.catalog import CATALOG
from evolvent.models.policy import Policy, load_policy
from evolvent.rollout.search import SearchPlayer
from evolvent.search.settings import ForestConfig
from evolvent.search.solving import check_solver
from evolvent.worlds.base import World

__all__ = ["SearchPlayerFactory", "SearchSetupConfig", "open_search_policies"]

_KEY_VARIABLE = "OPENAI_API_KEY"
_MAX_ENGINE_ROWS = 256  # an engine's memory grows with its rows


class SearchSetupConfig(ModelConfig, WorldsConfig):
    """Settings of the searching policy, the judge and the search."""

    policy: str = Field(default="xs", description="who writes: a size, a model (folder, GGUF file, name), or a run")
    judge: str = Field(
        default="", description="who values, or completes for rStar: a model folder or a run; none: the policy itself"
    )
    endpoint: str = Field(default="", description="URL of an endpoint that serves the policy; none: this process does")
    model: str = Field(default="", description="what that endpoint calls it")
    dialect: ServerDialect = Field(default="openai", description="what the endpoints speak")
    judge_endpoint: str = Field(default="", description="URL of an endpoint that serves the judge of rStar's solutions")
    judge_model: str = Field(default="", description="what that endpoint calls it")
    key_env: str = Field(
        default=_KEY_VARIABLE, description="the environment variable that holds the key of the endpoints"
    )
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    slots: int = Field(default=64, ge=1, description="searches that go side by side")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    agent: PromptConfig = Field(default_factory=PromptConfig, description="the prompt")
    search: ForestConfig = Field(default_factory=ForestConfig, description="the search")

    @model_validator(mode="after")
    def _check_endpoints(self) -> SearchSetupConfig:
        errors = []
        if bool(self.endpoint) != bool(self.model):
            errors.append("an endpoint needs both --endpoint URL and --model NAME")
        if self.endpoint and self.policy in POLICIES:
            errors.append("beside an endpoint --policy names the folder of the model that it serves, for its tokenizer")
        if self.endpoint and self.search.level == "token":
            errors.append("an endpoint gives no logits: token-level search needs the model here")
        if self.endpoint and self.search.uses_judge and self.search.value == "judge" and not self.judge:
            errors.append("an endpoint gives no values: name --judge FOLDER, or --search.value rollouts")
        if bool(self.judge_endpoint) != bool(self.judge_model) or (self.judge_endpoint and not self.judge):
            errors.append(
                "a judge behind an endpoint needs --judge_endpoint URL, --judge_model NAME and, for its "
                "tokenizer, --judge FOLDER"
            )
        if self.judge_endpoint and (self.search.value == "judge" or self.search.rstar.discriminator != "judge"):
            errors.append(
                "a judge behind an endpoint gives no values, it completes solutions: "
                "--search.rstar.discriminator judge --search.value none"
            )
        if self.search.rstar.discriminator == "judge" and not self.judge:
            errors.append("a discriminator 'judge' needs --judge FOLDER; the policy itself is 'policy'")
        if errors:
            raise ValueError("; ".join(errors))
        return self

    def check_inputs(self) -> None:
        """Checks that the policy and the judge exist.

        Raises:
            ConfigError and others: see `resolve_model_folder`.
        """
        check_policy_name(self.policy)
        if self.judge:
            _judge_folder(self.judge)


@dataclass(frozen=True)
class SearchPlayerFactory:
    """The policies of a search, from which it makes players.

    Args:
        policy: the writing policy.
        engine: its engine, which also answers for a judge that is another policy.
        judge: the policy that estimates values; the writing policy where no other was named.
    """

    policy: Policy
    engine: Engine
    judge: Policy

    def make_player(self, search: ForestConfig, *, stop: str = "") -> SearchPlayer:
        """Returns the player that searches with these settings.

        Args:
            search: the settings of the search.
            stop: the detector that ends its votes early; empty: none.
        Raises:
            ConfigError: a judge without the head or the words that `search.score` reads; an unknown detector; rStar
                with a model that cannot read its prompts.
        """
        from evolvent.scale.judging import JUDGE, make_scorer

        model = None if self.judge is self.policy else JUDGE
        scorer = make_scorer(self.judge, search, model=model) if search.uses_judge else None
        uses_judge_solver = search.uses_rstar and search.rstar.discriminator == "judge" and model is not None
        if search.uses_rstar:
            check_solver(self.policy)
        if uses_judge_solver:
            check_solver(self.judge, setting="judge")
        return SearchPlayer(
            self.policy,
            self.engine,
            scorer,
            parse_detector(stop) if stop else None,
            (self.judge, JUDGE) if uses_judge_solver else None,
        )


def _engine_rows(config: SearchSetupConfig) -> int:
    """Returns the rows of an engine: every running search samples `width` children, or rStar's votes, at once."""
    rows_per_search = config.search.rstar.votes if config.search.uses_rstar else config.search.width
    return min(_MAX_ENGINE_ROWS, config.slots * rows_per_search)


@contextmanager
def open_search_policies(config: SearchSetupConfig, worlds: Mapping[str, World]) -> Iterator[SearchPlayerFactory]:
    """Yields the policies that the settings name, loaded; their resources are released at the end.

    Raises:
        ConfigError, Incomplete: a policy that cannot search, or an endpoint without the model.
        VocabularyMismatch: a policy that lacks words of a world, or a value judge with another tokenizer. A judge
            that completes solutions may have its own tokenizer.
        EndpointError, TokensMissing: an endpoint that does not answer, or that returns no token ids.
    """
    import torch

    from evolvent.engine.driver import MultiModelEngine
    from evolvent.engine.fitting import engine_for
    from evolvent.scale.judging import JUDGE, combine_engines

    torch.set_num_threads(config.threads)
    placement = config.placement
    writer = resolve_policy(
        config.policy, list(worlds.values()), seed=config.seed, placement=placement, history=config.agent.history
    )
    judge = (
        load_policy(_judge_folder(config.judge), device=placement.device, dtype=placement.dtype)
        if config.judge
        else writer
    )
    with ExitStack() as exit_stack:
        engine = exit_stack.enter_context(_open_remote_engine(config, writer)) if config.endpoint else None
        engine = engine or engine_for(writer, slots=_engine_rows(config))
        if judge is not writer:
            is_remote = config.judge_endpoint
            judge_engine = (
                exit_stack.enter_context(_open_remote_engine(config, judge, is_judge=True)) if is_remote else None
            )
            judge_engine = judge_engine or engine_for(judge, slots=_engine_rows(config))
            if config.search.value == "judge":
                engine = combine_engines(writer, judge, engine=engine, value_engine=judge_engine)
            else:
                engine = MultiModelEngine({"policy": engine, JUDGE: judge_engine})
        yield SearchPlayerFactory(writer, engine, judge)


def _judge_folder(judge: str) -> Path:
    try:
        return resolve_model_folder(judge)
    except ConfigError as error:
        reason = f"unknown judge {judge!r}" if Path(judge).name == judge and judge not in CATALOG else str(error)
        problem = Problem("judge", reason, "a model folder, or the folder of a run")
        raise ConfigError([problem]) from error


@contextmanager
def _open_remote_engine(
    config: SearchSetupConfig, served_policy: Policy, *, is_judge: bool = False
) -> Iterator[Engine]:
    """Opens the engine of a policy behind the endpoint, or behind the judge's endpoint."""
    from evolvent.engine.remote import RemoteEngine
    from evolvent.scale.endpoint_backend import check_tokenizer

    key = os.environ.get(config.key_env)
    secret = SecretStr(key) if key else None
    url, model = (config.judge_endpoint, config.judge_model) if is_judge else (config.endpoint, config.model)
    with endpoint_type(config.dialect)(url, model, key=secret, tokens=True, processed=True) as endpoint:
        endpoint.check()
        check_tokenizer(endpoint, served_policy)
        engine = RemoteEngine(
            endpoint,
            context=served_policy.context,
            vocabulary=len(served_policy.tokenizer),
            version=served_policy.version,
            threads=config.slots,
        )
        try:
            yield engine
        finally:
            engine.close()
