"""One-to-one matchings between two small sets: maximum cardinality, and maximum weight."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["heaviest_matching", "maximum_matching"]


def maximum_matching(fits: Sequence[Sequence[bool]]) -> list[int]:
    """Computes a maximum matching of a bipartite graph, by augmenting paths (Kuhn 1955; at most rows * edges
    steps).

    Args:
        fits: `[rows][columns]`. Whether a row may be matched with a column.
    Returns:
        For each row its column, -1 where it has none.
    """
    row_of_column: dict[int, int] = {}
    for row in range(len(fits)):
        _augment(fits, row, row_of_column)
    columns = [-1] * len(fits)
    for column, row in row_of_column.items():
        columns[row] = column
    return columns


def _augment(fits: Sequence[Sequence[bool]], start: int, row_of_column: dict[int, int]) -> None:
    """Matches `start` by moving others along the shortest alternating path that ends at a free column."""
    parent_rows: dict[int, int] = {}  # column -> the row from which the path reached it
    queue = [start]
    for row in queue:
        for column, is_edge in enumerate(fits[row]):
            if not is_edge or column in parent_rows:
                continue
            parent_rows[column] = row
            if column in row_of_column:
                queue.append(row_of_column[column])
                continue
            free_column = column
            while True:
                path_row = parent_rows[free_column]
                previous_column = next(
                    (
                        matched_column
                        for matched_column, matched_row in row_of_column.items()
                        if matched_row == path_row
                    ),
                    None,
                )
                row_of_column[free_column] = path_row
                if path_row == start or previous_column is None:
                    return
                free_column = previous_column


def heaviest_matching(weights: Sequence[Sequence[int]]) -> int:
    """Computes the greatest total weight of pairs, each row and each column at most once (Hungarian method).

    Args:
        weights: `[rows][columns]`, none below 0.
    Returns:
        The sum over the pairs; takes rows^2 * columns steps for rows <= columns.
    """
    if not weights or not weights[0]:
        return 0
    if len(weights) > len(weights[0]):
        return heaviest_matching(list(zip(*weights, strict=True)))
    rows, columns = len(weights), len(weights[0])
    price_row, price_column = [0] * (rows + 1), [0] * (columns + 1)
    row_of_column = [0] * (columns + 1)  # 1-based; column 0 stands for the row that is being matched
    for row in range(1, rows + 1):
        row_of_column[0], column = row, 0
        slack: list[float] = [float("inf")] * (columns + 1)
        parent_columns, is_visited = [0] * (columns + 1), [False] * (columns + 1)
        while row_of_column[column]:
            is_visited[column] = True
            current_row, step, next_column = row_of_column[column], float("inf"), 0
            for candidate in range(1, columns + 1):
                if is_visited[candidate]:
                    continue
                reduced_cost = (
                    -weights[current_row - 1][candidate - 1] - price_row[current_row] - price_column[candidate]
                )
                if reduced_cost < slack[candidate]:
                    slack[candidate], parent_columns[candidate] = reduced_cost, column
                if slack[candidate] < step:
                    step, next_column = slack[candidate], candidate
            for candidate in range(columns + 1):
                if is_visited[candidate]:
                    price_row[row_of_column[candidate]] += int(step)
                    price_column[candidate] -= int(step)
                else:
                    slack[candidate] -= step
            column = next_column
        while column:
            row_of_column[column] = row_of_column[parent_columns[column]]
            column = parent_columns[column]
    return sum(
        weights[row_of_column[column] - 1][column - 1] for column in range(1, columns + 1) if row_of_column[column]
    )
