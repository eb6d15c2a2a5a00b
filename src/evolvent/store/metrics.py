"""The numbers that a run logged: a table for notebooks, pandas and Arrow, and its curves as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from evolvent.errors import ConfigError, MissingExtra, find_nearest
from evolvent.store.log import read_rows
from evolvent.trajectory import Json

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

__all__ = ["MAX_HTML_ROWS", "MetricsTable", "html_table", "read_metrics"]

MAX_HTML_ROWS = 50  # of a table in a notebook
_DEFAULT_NAMES = ("success", "return", "loss")  # what `plot` draws unless names are given
_CONTEXT_NAMES = frozenset({"time_s", "cpu_s", "round", "step", "of"})  # where a row stands, which is no curve
_PANEL_INCHES = (4.5, 3.0)


class MetricsTable(list[dict[str, Json]]):
    """Logged numbers: a list of dicts, one a row.

    >>> MetricsTable([{"step": 1, "loss": 0.5}, {"step": 2}]).to_arrow().column("loss").to_pylist()
    [0.5, None]
    """

    def to_arrow(self) -> pa.Table:
        """Returns the rows as an Arrow table; columns that a row lacks are null."""
        import pyarrow as pa

        names = dict.fromkeys(name for row in self for name in row)
        return pa.table({name: [row.get(name) for row in self] for name in names})

    def to_pandas(self) -> object:
        """Returns the rows as a data frame; it needs pandas."""
        return self.to_arrow().to_pandas()

    def curves(self, name: str) -> dict[str, list[tuple[float, float]]]:
        """Returns the points of a number by curve: one for each arm, and for each kind where several log the number.

        The steps of stages that follow each other are added up: a curve goes on where the stage before ended. An
        evaluation is one point, its last row, at its round.

        >>> rows = [{"arm": "a", "kind": "fit", "stage": s, "step": i, "loss": 1 / i} for s in "xy" for i in (1, 2)]
        >>> MetricsTable(rows).curves("loss")
        {'a': [(1.0, 1.0), (2.0, 0.5), (3.0, 1.0), (4.0, 0.5)]}
        """
        rows_by_curve: dict[tuple[str, str], list[Mapping[str, Json]]] = {}
        for row in self:
            if _is_number(row.get(name)) and row.get("kind") != "stage":
                rows_by_curve.setdefault((str(row.get("arm", "")), str(row.get("kind", ""))), []).append(row)
        has_kinds = len({kind for _, kind in rows_by_curve}) > 1
        curves = {}
        for (arm, kind), rows in rows_by_curve.items():
            label = " ".join(part for part in (arm, kind if has_kinds else "") if part)
            curves[label] = _evaluation_points(rows, name) if kind == "evaluate" else _step_points(rows, name)
        return curves

    def plot(self, *names: str) -> Figure:
        """Draws numbers over training: a panel for each, a curve for each arm (`curves`).

        Args:
            names: logged numbers; none: those of success, return and loss that there are.

        Returns:
            a matplotlib figure, which notebooks show; `.savefig("curves.pdf")` writes it.

        Raises:
            MissingExtra: matplotlib is not installed.
            ConfigError: no row has a number of that name.
        """
        try:
            from matplotlib.figure import Figure
            from matplotlib.ticker import MaxNLocator
        except ImportError as error:
            raise MissingExtra("plot", "drawing metrics") from error

        class NotebookFigure(Figure):
            """A figure outside pyplot, which would hold it until it is closed; notebooks show only those of pyplot."""

            def _repr_png_(self) -> bytes:
                stream = BytesIO()
                self.savefig(stream, format="png")
                return stream.getvalue()

        present = self._list_numbers()
        chosen = names or tuple(name for name in _DEFAULT_NAMES if name in present) or _DEFAULT_NAMES
        for name in chosen:
            if name not in present:
                raise _unknown_number(name, present)
        width, height = _PANEL_INCHES
        figure = NotebookFigure(figsize=(width * len(chosen), height), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
            for label, points in self.curves(name).items():
                axes.plot(*zip(*points, strict=True), label=label, marker="o" if len(points) < 20 else "")
            axes.set(title=name, xlabel="round" if self._is_evaluated_only(name) else "step")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.legend()
        return figure

    def _list_numbers(self) -> list[str]:
        """Returns the names of what can be drawn, in order of appearance."""
        rows = (row for row in self if row.get("kind") != "stage")
        found = dict.fromkeys(name for row in rows for name, cell in row.items() if _is_number(cell))
        return [name for name in found if name not in _CONTEXT_NAMES]

    def _is_evaluated_only(self, name: str) -> bool:
        return all(row.get("kind") == "evaluate" for row in self if _is_number(row.get(name)))

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for row in self for name in row))
        return html_table(names, [[row.get(name, "") for name in names] for row in self[-MAX_HTML_ROWS:]])


def read_metrics(folder: Path | str, kind: str | None = None) -> MetricsTable:
    """Returns what a run logged so far.

    Args:
        folder: the directory of the run.
        kind: rows of one kind alone; None: all.
    """
    rows = read_rows(Path(folder) / "metrics.jsonl")
    return MetricsTable(dict(row) for row in rows if kind in (None, row.get("kind")))


def html_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table for notebooks; all cells are text.

    >>> html_table(["a"], [["<b>"]])
    '<table><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    lines = ["".join(f"<th>{escape(name)}</th>" for name in names)]
    lines += ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _number(row: Mapping[str, Json], name: str) -> float:
    cell = row.get(name)
    return float(cell) if isinstance(cell, int | float) else 0.0


def _unknown_number(name: str, present: Sequence[str]) -> ConfigError:
    similar = find_nearest(name, present)
    hint = f"did you mean {similar!r}?" if similar else f"logged so far: {', '.join(present) or 'nothing'}"
    return ConfigError("unknown metric", value=name, hint=hint)


def _evaluation_points(rows: Sequence[Mapping[str, Json]], name: str) -> list[tuple[float, float]]:
    """Returns one point a stage: its last row."""
    last_by_stage = {row.get("stage"): row for row in rows}
    return [(_number(row, "round"), _number(row, name)) for row in last_by_stage.values()]


def _step_points(rows: Sequence[Mapping[str, Json]], name: str) -> list[tuple[float, float]]:
    """Returns every step of every stage, behind the steps of the stages before; of a step done again, the last row."""
    steps_by_stage: dict[Json, dict[float, float]] = {}
    for row in rows:
        steps_by_stage.setdefault(row.get("stage"), {})[_number(row, "step")] = _number(row, name)
    points: list[tuple[float, float]] = []
    for steps in steps_by_stage.values():
        before = points[-1][0] if points else 0.0
        points += [(before + step, steps[step]) for step in sorted(steps)]
    return points
