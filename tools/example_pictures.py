"""Draws the curves of docs/examples.md; needs the extra "plot", nbclient and ipykernel.

    python tools/example_pictures.py

Notebooks are run in an empty folder, and the picture of a cell is kept; the examples of GRPO and of teams are run as
scripts.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import nbclient
import nbformat

from evolvent.store.metrics import read_metrics

ROOT = Path(__file__).parents[1]
EXAMPLES, PICTURES = ROOT / "examples", ROOT / "docs" / "examples"
CELLS = {"own_world": "curve", "search": "plot"}  # notebook -> the cell that draws


def draw_notebook(name: str, cell_id: str, folder: Path) -> bytes:
    """Runs a notebook in a folder and returns the picture of a cell as PNG."""
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    return base64.b64decode(cell.outputs[-1].data["image/png"])


def draw_grpo(folder: Path, target: Path) -> None:
    """Runs GRPO on prompts in a folder and draws return and success by iteration."""
    subprocess.run(
        [sys.executable, str(EXAMPLES / "grpo_prompts.py")], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    figure = read_metrics(folder / "runs" / "grpo-prompts", "practise").plot("return", "success")
    figure.savefig(target, dpi=80)


def draw_team(folder: Path, target: Path) -> None:
    """Runs the example of teams in a folder and draws the mean return by decisions that it prints."""
    script = [sys.executable, str(EXAMPLES / "team_sequence.py")]
    printed = subprocess.run(script, cwd=folder, check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^(\w+) +([\d,]+) decisions: mean return ([\d.]+)$", printed, re.MULTILINE)
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for kind in dict.fromkeys(kind for kind, _, _ in rows):
        points = [(int(decisions.replace(",", "")), float(value)) for name, decisions, value in rows if name == kind]
        axes.plot(*zip(*points, strict=True), marker="o", label=kind.upper())
    axes.set(xlabel="decisions", ylabel="mean return", ylim=(0, 1))
    axes.legend()
    figure.savefig(target, dpi=80)


def main() -> None:
    """Draws all pictures."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch:
        for name, cell_id in CELLS.items():
            (PICTURES / f"{name}.png").write_bytes(draw_notebook(name, cell_id, Path(scratch)))
        draw_grpo(Path(scratch), PICTURES / "grpo_prompts.png")
        draw_team(Path(scratch), PICTURES / "team_sequence.png")


if __name__ == "__main__":
    main()
