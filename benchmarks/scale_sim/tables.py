"""The figures of `benchmarks.scale_sim` as tables of text; also what `docs/scaling.md` quotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["tables"]

_COSTS = (
    ("forward_s", "a forward of the engine, apart from its rows"),
    ("row_s", "each row of a forward"),
    ("read_s", "a token that is read"),
    ("outside_forward_s", "a forward, outside of the model"),
    ("outside_row_s", "each row, outside of the model"),
    ("mixed_s", "a forward of a collection, beyond that"),
    ("step_s", "a step, beside its forwards"),
    ("outside_step_s", "a step, outside of the model"),
    ("env_step_s", "an environment's step, in process"),
    ("server_step_s", "the same over the server: CPU beside it"),
    ("server_latency_s", "the same, seconds until the answer"),
    ("deal_s", "an episode dealt"),
    ("learn_token_s", "a token of training"),
)
_FITS = (
    ("tell_s", "an episode told as a line"),
    ("receive_s", "an episode read by the driver"),
    ("store_s", "an episode stored"),
)


def tables(result: Mapping[str, Any]) -> str:
    """Everything that a reader asks first."""
    parts = [
        measured(result["measured"]),
        checks(result),
        predictions(result),
        broken(result),
        kinds(result),
        *remedies(result),
        *tornado(result),
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def short(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def measured(found: Mapping[str, Any]) -> list[str]:
    """The costs, in microseconds; fits by episode, step and token."""
    rows = [[what, short(1e6 * found[name])] for name, what in _COSTS]
    rows += [
        [
            what,
            " + ".join(
                f"{short(1e6 * each)}{of}" for each, of in zip(found[name], ("", " a step", " a token"), strict=True)
            ),
        ]
        for name, what in _FITS
    ]
    rows += [
        [f"weights {what}, a byte (ns)", short(1e9 * found[name][1])]
        for name, what in (("pack_s", "packed"), ("load_s", "loaded"))
    ]
    rows += [
        [
            "an episode on the wire (bytes)",
            " + ".join(
                f"{short(each)}{of}" for each, of in zip(found["wire_bytes"], ("", " a step", " a token"), strict=True)
            ),
        ],
        ["gradients (bytes)", short(found["gradient_bytes"])],
    ]
    return grid(("cost, in microseconds of a core", "measured"), rows)


def checks(result: Mapping[str, Any]) -> list[str]:
    """Foreseen over measured."""
    told = {"crafting (calibrated)": result["checks"], **result["out_of_sample"]}
    rows = [
        [name, workers, *(f"{each:.2f}" for each in (*row[:3],)), f"{row[3]:.2f} to {row[4]:.2f}", f"{row[5]:.2f}"]
        for name, own in told.items()
        for workers, row in own.items()
    ]
    head = ("circles of", "workers", "foreseen (s)", "measured (s)", "ratio", "least and largest", "ratio of CPU")
    return grid(head, rows)


def predictions(result: Mapping[str, Any]) -> list[str]:
    """Steps a second and what it is bound by, by model and GPUs and environments."""
    rows = []
    for name, own in result["predictions"].items():
        for gpus, row in own.items():
            rows.append([name, gpus, *(f"{short(one['steps_s'])} ({one['bound_by']})" for one in row.values())])
    first = next(iter(next(iter(result["predictions"].values())).values()))
    return grid(("model", "GPUs", *(f"{int(envs):,}" for envs in first)), rows)


def broken(result: Mapping[str, Any]) -> list[str]:
    """What is full first, and what one version behind brings."""
    rows = []
    for name, own in result["breaks_first"].items():
        for gpus, one in own.items():
            what = (
                f"{one['what']} at {one['environments']:,}"
                if one["what"]
                else f"the GPUs; then {one['nearest']}, {one['used']:.0%} busy"
            )
            ahead = result["ahead"][name][gpus]
            rows.append([name, gpus, what, f"{short(ahead['steps_s'])} ({ahead['playing']:.0%})" if ahead else ""])
    return grid(("model", "GPUs", "full first, as environments grow", "one version behind (share that plays)"), rows)


def kinds(result: Mapping[str, Any]) -> list[str]:
    """Heavier environments."""
    found = result["kinds"]
    head = ("7B, 10,000 environments; CPU-s of a step", *next(iter(found.values())))
    return grid(
        head,
        [
            [f"{gpus} GPUs", *(f"{short(one['steps_s'])} ({one['bound_by']})" for one in row.values())]
            for gpus, row in found.items()
        ],
    )


def remedies(result: Mapping[str, Any]) -> Iterator[list[str]]:
    """What could be done."""
    for name, own in result["remedies"].items():
        yield grid(
            (name, "steps/s", "bound by"), [[way, short(row["steps_s"]), row["bound_by"]] for way, row in own.items()]
        )


def tornado(result: Mapping[str, Any]) -> Iterator[list[str]]:
    """Constants that change anything by a hundredth."""
    for name, own in result["tornado"].items():
        rows = [
            [constant, *(f"{each:.2f}" for each in both)]
            for constant, both in own.items()
            if max(abs(each - 1) for each in both) >= 0.01
        ]
        yield grid((f"{name}: steps/s over themselves", "halved", "doubled"), rows)
