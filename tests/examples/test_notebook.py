"""The notebooks of the examples, run by Jupyter's own client in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolvent.store.metrics import read_metrics

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Returns a function that runs a notebook in an empty folder and returns the outputs of its cells by id."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")

    def run_notebook(name):
        notebook = nbformat.read(EXAMPLES / name, as_version=4)
        nbformat.validate(notebook)
        assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept"
        client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
        client.execute()
        return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}

    return run_notebook


def text_of(outputs):
    return "".join(str(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in outputs)


def test_first_run_shows_its_curves_and_table(execute, tmp_path):
    outputs = execute("first_run.ipynb")
    assert "iteration 4/4: mean return" in text_of(outputs["train"]) and "Policy(" in text_of(outputs["train"])
    assert "image/png" in outputs["curves"][-1].data
    assert "return" in outputs["table"][-1].data["text/html"]
    rows = read_metrics(tmp_path / "runs" / "notebook", "practise")
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and rows[-1]["return"] > rows[0]["return"]


@pytest.mark.long
def test_own_world_is_learned_from_its_expert(execute):
    outputs = execute("own_world.ipynb")
    rates = [
        float(line.split()[-1].rstrip("%")) for line in text_of(outputs["train"]).splitlines() if "tokens:" in line
    ]
    assert len(rates) == 5 and rates[-1] >= 95 > 60 > rates[0]
    assert "image/png" in outputs["curve"][-1].data
    assert outputs["play"][-1].data["text/html"].count("<tr") == 8, "seven unseen numbers below a head"


@pytest.mark.long
def test_search_pays_with_a_good_judge(execute):
    outputs = execute("search.ipynb")
    rates = {
        line[:9].strip(): [float(value) for value in line[9:].split()] for line in text_of(outputs["run"]).splitlines()
    }
    for name in ("beam", "MCTS"):
        assert rates[name][0] == 1.0 and rates[name][0] > rates[name][2] > rates[name][3] > rates["best of n"][3]
    assert rates["best of n"][0] < 0.2
    assert "image/png" in outputs["plot"][-1].data
