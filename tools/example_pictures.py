"""Draws the curves of docs/examples.md; needs the extra "plot", nbclient and ipykernel.

    python tools/example_pictures.py

Notebooks are run in an empty folder, and the picture of a cell is kept; the GRPO example is run as a script.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

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


def main() -> None:
    """Draws all pictures."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch:
        for name, cell_id in CELLS.items():
            (PICTURES / f"{name}.png").write_bytes(draw_notebook(name, cell_id, Path(scratch)))
        draw_grpo(Path(scratch), PICTURES / "grpo_prompts.png")


if __name__ == "__main__":
    main()
