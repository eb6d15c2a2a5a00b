"""Measured grids: reading, interpolation, and files that are none."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError, SampleInvalid
from evolvent.worlds.plume.grids import ConcentrationGrid, read_grid

X, Y = np.array([0.0, 2.0, 3.0]), np.array([1.0, 2.0])
VALUES = np.array([[0.0, 4.0, 5.0], [1.0, 3.0, 7.0]])


def lines(rows):
    return "x,y,concentration\n" + "".join(f"{x},{y},{value}\n" for x, y, value in rows)


ROWS = [(x, y, VALUES[j, i]) for i, x in enumerate(X) for j, y in enumerate(Y)]


def test_both_files_say_the_same(tmp_path):
    (tmp_path / "a.csv").write_text(lines(ROWS[::-1]), encoding="utf-8")
    np.savez(tmp_path / "a.npz", x=X, y=Y, concentration=VALUES)
    for name in ("a.csv", "a.npz"):
        found = read_grid(tmp_path / name)
        np.testing.assert_array_equal(found.values, VALUES)
        np.testing.assert_array_equal(found.x, X)


def test_interpolation_is_bilinear_and_zero_outside():
    grid = ConcentrationGrid(X, Y, VALUES)
    places = np.array([[0, 1, 0], [3, 2, 9], [1, 1, 0], [2, 1.5, 0], [1, 1.5, 0], [3.01, 1, 0], [1, 0.99, 0]])
    np.testing.assert_allclose(grid(places), [0, 7, 2, 3.5, 2, 0, 0])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a,b,c\n1,2,3\n", "line 1"),
        (lines(ROWS) + "1,x,3\n", "line 8"),
        (lines(ROWS) + "0,1,3\n", "line 8"),
        (lines(ROWS) + "nan,1,3\n", "line 8"),
        (lines(ROWS[:-1]), "missing"),
    ],
)
def test_broken_csv(tmp_path, text, what):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(SampleInvalid, match=what):
        read_grid(tmp_path / "a.csv")


@pytest.mark.parametrize("row", [b"0,0,\xff\xfe\n", b"0,0," + b"1" * 200_000])
def test_a_csv_that_is_no_text(tmp_path, row):
    (tmp_path / "a.csv").write_bytes(b"x,y,concentration\n" + row)
    with pytest.raises(SampleInvalid, match=r"a\.csv"):
        read_grid(tmp_path / "a.csv")


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_concentrations_that_cannot_be(tmp_path, value):
    (tmp_path / "a.csv").write_text(lines([*ROWS[:-1], (*ROWS[-1][:2], value)]), encoding="utf-8")
    with pytest.raises(ConfigError, match="x = 3, y = 2"):
        read_grid(tmp_path / "a.csv")


def test_pickled_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object), y=Y, concentration=VALUES)
    with pytest.raises(SampleInvalid):
        read_grid(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(b"no archive")
    np.savez(tmp_path / "c.npz", x=X, y=Y)
    np.savez(tmp_path / "d.npz", x=np.zeros(3, dtype=[("a", "f8"), ("b", "f8")]), y=Y, concentration=VALUES)
    for name in ("b.npz", "c.npz", "d.npz"):
        with pytest.raises(SampleInvalid):
            read_grid(tmp_path / name)


def test_grids_that_are_none(tmp_path):
    for wrong in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(ConfigError, match=r"\.csv or \.npz"):
            read_grid(wrong)
    for x, y, values in ((X[:1], Y, VALUES[:, :1]), (X[::-1], Y, VALUES), (X, Y, VALUES.T)):
        with pytest.raises(ConfigError):
            ConcentrationGrid(x, y, values)
