"""The notebook of the examples, run by Jupyter's own client in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolvent.store.metrics import read_metrics

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_run.ipynb"


def test_it_runs_and_shows_its_curves_and_table(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept"
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    told = "".join(output.get("data", output).get("text/plain", "") for output in shown["train"])
    assert "iteration 4/4: mean return" in told and "Policy(" in told
    assert "image/png" in shown["curves"][-1].data
    assert "return" in shown["table"][-1].data["text/html"]
    rows = read_metrics(tmp_path / "runs" / "notebook", "practise")
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and rows[-1]["return"] > rows[0]["return"]
