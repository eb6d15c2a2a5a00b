"""Writes docs/methods/NAME.md, a page for each method, from its docstring and its settings: `make docs-methods`.

Run it after a change of a method's docstring or settings. A new page also goes into zensical.toml.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pydantic import BaseModel

from evolvent.config import list_settings

__all__ = ["METHODS", "MethodEntry", "method_pages"]

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "methods"
_REPOSITORY = "https://arxiv.org/abs/"
_ARXIV = re.compile(r"\b(\d{4}\.\d{5})\b")


@dataclass(frozen=True)
class MethodEntry:
    """A method's page: what the code does not say.

    Args:
        title: heading, and name in the index.
        module: module of `evolvent.methods` whose docstring explains the method.
        when: when to use it, and what it needs.
        command: the command that runs it.
        config: configuration class of the module; "": it has none of its own.
        links: further pages, by their title.
    """

    title: str
    module: str
    when: str
    command: str
    config: str
    links: tuple[tuple[str, str], ...] = ()


_MECHANISMS = ("../mechanisms.md", "Why the methods work")
_RL = ("../reinforcement.md", "Reinforcement")
_SEQUENCES = ("../sequences.md", "Decisions as sequences")


def _paper(name: str, title: str) -> tuple[str, str]:
    return f"../papers/{name}.md", f"The paper's page: {title}"


def _settings(name: str) -> tuple[str, str]:
    return f"../commands/train_{name}.md", "All settings of the command"


METHODS: dict[str, dict[str, MethodEntry]] = {
    "Evolving": {
        "agentevol": MethodEntry(
            "AgentEvol",
            "agentevol",
            "Rewards are rare and a few demonstrations exist. It needs no critic and no gradient of a reward: it "
            "filters and imitates. Every run of the command trains its control beside it: cloning continued for as "
            "many learned tokens.",
            "evolvent evolve",
            "AgentEvolConfig",
            (("../commands/evolve.md", "All settings of the command"), _paper("agentevol", "AgentGym, AgentEvol")),
        ),
    },
    "Reinforcement learning": {
        "grpo": MethodEntry(
            "GRPO and its family",
            "grpo",
            "The first choice for prompts with a reward that can be computed: no critic, and several episodes of each "
            "task are compared. It learns nothing from tasks that always or never succeed; choose tasks of medium "
            "difficulty, or `--rl.kind dapo`.",
            "evolvent train grpo --data questions.jsonl --reward exact",
            "GRPOConfig",
            (_settings("rl_grpo"), ("../grpo_on_your_data.md", "GRPO on your data"), _RL),
        ),
        "ppo": MethodEntry(
            "PPO, TWOSOME, GLAM and token PPO",
            "ppo",
            "Episodes of several steps with rewards on the way: a critic says which step earned them. At the level "
            "`listed`, a world that lists its admissible actions can be learned from nothing.",
            "evolvent train ppo --worlds crafting",
            "PPOConfig",
            (_settings("rl_ppo"), _settings("rl_twosome"), _settings("rl_glam"), _settings("rl_token_ppo"), _RL),
        ),
        "poad": MethodEntry(
            "POAD",
            "poad",
            "Actions are long texts, and some of their tokens matter more than others. With actions of one "
            "token it equals PPO.",
            "evolvent train poad --worlds crafting",
            "POADConfig",
            (_settings("rl_poad"), _paper("poad", "POAD"), _MECHANISMS),
        ),
        "ntpo": MethodEntry(
            "NTPO",
            "ntpo",
            "As a baseline: it shows what the discount between tokens costs.",
            "evolvent train ntpo --worlds crafting",
            "NTPOConfig",
            (_settings("rl_ntpo"), _paper("poad", "POAD"), _MECHANISMS),
        ),
        "etpo": MethodEntry(
            "ETPO",
            "etpo",
            "The policy should stay near its reference while it earns more: the divergence is part of the value of "
            "every token. It needs a second model for the values.",
            "evolvent train etpo --worlds crafting",
            "ETPOConfig",
            (_settings("rl_etpo"), _paper("etpo", "ETPO")),
        ),
        "scaling_inter": MethodEntry(
            "ScalingInter-RL",
            "scaling_inter",
            "Long episodes in which an ignorant policy only wanders about.",
            "evolvent train scaling_inter --worlds crafting",
            "ScalingInterConfig",
            (_settings("rl_scaling_inter"), _RL),
        ),
        "r3": MethodEntry(
            "R3",
            "r3",
            "Only the outcome is rewarded, it is far from the beginning, and demonstrations exist. Nothing is "
            "imitated: demonstrations only say where to begin.",
            "evolvent train r3 --worlds crafting",
            "R3Config",
            (_settings("rl_r3"), _paper("r3", "R3"), _MECHANISMS),
        ),
        "control_ppo": MethodEntry(
            "PPO over numbers",
            "control_ppo",
            "An environment of Gymnasium with vectors of numbers and no language, as a baseline or a start.",
            "evolvent train ppo --policy mlp --worlds gymnasium:CartPole-v1",
            "",
            (("../gymnasium.md", "Gymnasium and PettingZoo"),),
        ),
        "mat": MethodEntry(
            "MAT, MAPPO and HAPPO",
            "mat",
            "A team with one reward, whose members see different things.",
            "evolvent train mat foraging",
            "MATConfig",
            (_settings("mat"), ("../teams.md", "Teams"), _paper("mat", "MAT")),
        ),
        "agdc": MethodEntry(
            "AGDC",
            "agdc",
            "A search for a hidden goal that nobody announces: the agent has to know when it is there.",
            "evolvent train agdc",
            "AGDCConfig",
            (_settings("agdc"), ("../belief.md", "Goal detection"), _paper("agdc", "AGDC")),
        ),
    },
    "Search and process rewards": {
        "tsllm": MethodEntry(
            "TS-LLM",
            "tsllm",
            "Many tokens may be spent on a task, and right and wrong beginnings can be told apart: search helps as far "
            "as the judge is right.",
            "evolvent train tsllm --worlds countdown",
            "TSLLMConfig",
            (
                _settings("tsllm"),
                ("../tsllm_openr.md", "Search with reward models"),
                _paper("tsllm", "TS-LLM"),
                _MECHANISMS,
            ),
        ),
        "openr": MethodEntry(
            "OpenR",
            "openr",
            "Answers are reasoned step by step, and a step can be judged by what follows from it.",
            "evolvent train openr --worlds arithmetic",
            "OpenRConfig",
            (_settings("openr"), ("../tsllm_openr.md", "Search with reward models"), _paper("openr", "OpenR")),
        ),
        "trad": MethodEntry(
            "TRAD",
            "trad",
            "Demonstrations exist and nothing may be trained: a frozen model, also one behind an endpoint, reads the "
            "steps that resemble its own.",
            "evolvent collect --policy smollm2 --worlds household --memory.folder memory",
            "TradConfig",
            (("../memory.md", "Retrieval of steps"), _paper("trad", "TRAD")),
        ),
    },
    "Data": {
        "hammer": MethodEntry(
            "Hammer",
            "hammer",
            "A small model calls functions whose names differ from those of its training, or calls a function where "
            "none fits.",
            "evolvent train hammer calls.jsonl --policy smollm2",
            "HammerConfig",
            (_settings("hammer"), ("../data.md", "Training data"), _paper("hammer", "Hammer"), _MECHANISMS),
        ),
        "comments": MethodEntry(
            "Comment augmentation",
            "comments",
            "A model of code is pretrained further on code that has few comments.",
            "evolvent train comments code.jsonl --policy smollm2",
            "CommentsConfig",
            (_settings("comments"), ("../data.md", "Training data"), _paper("comments", "Comment augmentation")),
        ),
        "p3": MethodEntry(
            "P3",
            "p3",
            "There are more rows for fine-tuning than are worth learning, and some of them are wrong.",
            "evolvent train p3 rows.jsonl --policy smollm2",
            "P3Config",
            (_settings("p3"), ("../data.md", "Training data"), _paper("p3", "P3"), _MECHANISMS),
        ),
    },
    "Recorded episodes": {
        "decision_transformer": MethodEntry(
            "Decision Transformer",
            "decision_transformer",
            "Recorded episodes of mixed quality, and no environment to try in. It does not put pieces of episodes "
            "together.",
            "evolvent train sequence --method dt stitching",
            "DecisionTransformerConfig",
            (
                _settings("sequence_dt"),
                _settings("sequence_bc"),
                _SEQUENCES,
                _paper("decision_transformer", "the survey"),
            ),
        ),
        "online_dt": MethodEntry(
            "Online Decision Transformer",
            "online_dt",
            "Recorded episodes to begin with, and an environment to go on in.",
            "evolvent train sequence --method odt stitching",
            "OnlineDTConfig",
            (_settings("sequence_odt"), _SEQUENCES),
        ),
        "trajectory_transformer": MethodEntry(
            "Trajectory Transformer",
            "trajectory_transformer",
            "Planning ahead is worth many forwards a step; with a short memory it puts pieces of episodes together.",
            "evolvent train sequence --method tt stitching",
            "TrajectoryTransformerConfig",
            (_settings("sequence_tt"), _SEQUENCES),
        ),
        "q_transformer": MethodEntry(
            "Q-Transformer",
            "q_transformer",
            "The best way is in pieces of several episodes, and no episode shows it whole.",
            "evolvent train sequence --method qt stitching",
            "QTransformerConfig",
            (_settings("sequence_qt"), _SEQUENCES),
        ),
        "q_decision_transformer": MethodEntry(
            "Q-learning Decision Transformer",
            "q_decision_transformer",
            "As Decision Transformer, where pieces have to be put together.",
            "evolvent train sequence --method qdt stitching",
            "QDecisionTransformerConfig",
            (_settings("sequence_qdt"), _SEQUENCES),
        ),
        "generalized_dt": MethodEntry(
            "Generalized Decision Transformer",
            "generalized_dt",
            "An episode is to be matched, and not only its return.",
            "evolvent train sequence --method gdt stitching",
            "GeneralizedDTConfig",
            (_settings("sequence_gdt"), _SEQUENCES),
        ),
        "prompt_dt": MethodEntry(
            "Prompt-DT",
            "prompt_dt",
            "Many related tasks, and one demonstration of a new one.",
            "evolvent train sequence --method pdt bandit",
            "PromptDTConfig",
            (_settings("sequence_pdt"), _SEQUENCES),
        ),
        "algorithm_distillation": MethodEntry(
            "Algorithm Distillation",
            "algorithm_distillation",
            "Many related tasks with the whole history of a learner in each; a new task should be learned without a "
            "change of weights.",
            "evolvent train sequence --method ad bandit",
            "AlgorithmDistillationConfig",
            (_settings("sequence_ad"), _SEQUENCES),
        ),
        "gato": MethodEntry(
            "Gato and Multi-Game DT",
            "gato",
            "One policy for several worlds of texts, choices and numbers.",
            "evolvent train sequence --method gato",
            "GatoConfig",
            (_settings("sequence_gato"), _settings("sequence_multi_game"), _SEQUENCES),
        ),
        "return_text": MethodEntry(
            "Return-conditioned text",
            "return_text",
            "Recorded episodes of a language policy, of mixed quality.",
            "evolvent train return_text runs/collect-1",
            "ReturnTextConfig",
            (_settings("return_text"), _SEQUENCES),
        ),
    },
}


def method_pages() -> dict[str, str]:
    """Returns the text of every page by its file name; `index.md` lists all methods."""
    index = ["# Methods", "", *_INTRODUCTION]
    pages = {}
    for group, entries in METHODS.items():
        index += ["", f"## {group}", "", "| method | in a sentence | papers |", "|---|---|---|"]
        for name, entry in entries.items():
            summary, paragraphs = _read_docstring(entry.module)
            papers = ", ".join(dict.fromkeys(_ARXIV.findall("\n".join(paragraphs))))
            index.append(f"| [{entry.title}]({name}.md) | {_strip_name(summary)} | {papers} |")
            pages[f"{name}.md"] = _page(entry, summary, paragraphs)
    return {"index.md": "\n".join(index) + "\n", **pages}


_INTRODUCTION = [
    "A method is one file of `src/evolvent/methods`: it says which data are learned with which objective. Worlds,",
    "the engine, the store and the learner are shared. `make docs-methods` generates these pages from the files.",
    "",
    "| You have | Begin with |",
    "|---|---|",
    "| prompts and a reward | [GRPO](grpo.md) |",
    "| an environment of several steps | [PPO](ppo.md) |",
    "| an environment, few demonstrations, rare rewards | [AgentEvol](agentevol.md) or [R3](r3.md) |",
    "| recorded episodes alone | [Decision Transformer](decision_transformer.md) |",
    "| a frozen model | [TRAD](trad.md), or [search](../search.md) |",
    "| a team | [MAT](mat.md) |",
    "| rows for fine-tuning | [P3](p3.md), [Hammer](hammer.md) for function calls, [comments](comments.md) for code |",
]


def _page(entry: MethodEntry, summary: str, paragraphs: list[str]) -> str:
    lines = [f"# {entry.title}", "", _strip_name(summary), "", *_render(paragraphs)]
    lines += ["", "## When to use it", "", entry.when, "", "## Run it", "", f"    {entry.command}", ""]
    lines.append(f"The method is `src/evolvent/methods/{entry.module}.py`.")
    if entry.config:
        config = getattr(import_module(f"evolvent.methods.{entry.module}"), entry.config)
        lines += ["", "## Its settings", "", *_settings_table(config)]
    lines += ["", "## Read on", "", *[f"- [{title}]({target})" for target, title in _name_commands(entry.links)]]
    return "\n".join(lines) + "\n"


def _read_docstring(module: str) -> tuple[str, list[str]]:
    """Returns the first paragraph of a module's docstring on one line, and the other paragraphs."""
    text = inspect.getdoc(import_module(f"evolvent.methods.{module}")) or ""
    first, *rest = text.split("\n\n")
    return " ".join(first.split()), rest


def _strip_name(summary: str) -> str:
    """Returns a sentence without the name before its colon.

    >>> _strip_name("MAT: a team's decision is a sequence.")
    "A team's decision is a sequence."
    """
    sentence = summary.partition(": ")[2] or summary
    return (sentence[0].upper() + sentence[1:]).replace("|", "\\|")


def _render(paragraphs: list[str]) -> list[str]:
    """Returns the paragraphs as Markdown: indented ones are formulas, numbers of arXiv are links."""
    lines: list[str] = []
    for paragraph in paragraphs:
        if paragraph.startswith("    "):
            joins = bool(lines) and lines[-1] == "```"
            lines = lines[:-1] if joins else lines
            block = [line[4:] for line in paragraph.splitlines()]
            lines += [*([""] if joins else ["", "```text"]), *block, "```"]
        else:
            linked = _ARXIV.sub(lambda match: f"[{match[1]}]({_REPOSITORY}{match[1]})", paragraph)
            lines += ["", *linked.splitlines()]
    return lines[1:]


def _settings_table(config: type[BaseModel]) -> list[str]:
    """Returns a table of the settings that are the method's own; of a group it names the settings."""
    descriptions = {name: field.description or "" for name, field in config.model_fields.items()}
    groups: dict[str, list[str]] = {}
    lines = ["| setting | values | default | meaning |", "|---|---|---|---|"]
    for setting in list_settings(config):
        group, _, inner = setting.path.partition(".")
        if not inner:
            default = "required" if setting.default == "required" else f"`{_unquote(setting.default)}`"
            values = _format_values(setting.type)
            lines.append(f"| `{group}` | {' | '.join(map(_escape, (values, default, setting.description)))} |")
        else:
            if group not in groups:
                lines.append(f"| `{group}.*` | | | ")  # ends when the group is known
            groups.setdefault(group, []).append(f"`{inner}`")
    for group, names in groups.items():
        row = f"| `{group}.*` | | | "
        lines[lines.index(row)] = f"{row}{_escape(descriptions[group])}: {', '.join(names)} |"
    return lines


def _format_values(type_text: str) -> str:
    """Returns a setting's type with its listed values as code.

    >>> _format_values("'mat' or 'mappo'")
    '`mat`, `mappo`'
    """
    return re.sub(r"'([^']*)'", r"`\1`", type_text).replace(" or ", ", ")


def _unquote(default: str) -> str:
    """Returns a default as the command line takes it: text without quotation marks."""
    return default[1:-1] if default.startswith('"') and default.count('"') == 2 else default


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _name_commands(links: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """Returns the links with the command in the title where several lead to settings."""
    several = sum(target.startswith("../commands/") for target, _ in links) > 1
    return [
        (target, f"{title}: `{_command_of(target)}`" if several and target.startswith("../commands/") else title)
        for target, title in links
    ]


def _command_of(target: str) -> str:
    words = target.removeprefix("../commands/").removesuffix(".md").split("_", 2)
    return " ".join([words[0], words[1], *(["--method", words[2]] if len(words) > 2 else [])])


def main() -> int:
    """Writes all pages, and removes pages of methods that are gone."""
    pages = method_pages()
    PAGES.mkdir(exist_ok=True)
    for path in PAGES.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (PAGES / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
