"""One-to-one matchings between two small sets: as many pairs as possible, and the pairs of greatest weight."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["heaviest_matching", "maximum_matching"]


def maximum_matching(fits: Sequence[Sequence[bool]]) -> list[int]:
    """A maximum matching of a bipartite graph, by augmenting paths (Kuhn 1955; at most rows * edges steps).

    Args:
        fits: `[rows][columns]`, whether a row may be matched with a column.
    Returns:
        For each row its column, -1 where it has none.
    """
    owner: dict[int, int] = {}
    for row in range(len(fits)):
        _augment(fits, row, owner)
    found = [-1] * len(fits)
    for column, row in owner.items():
        found[row] = column
    return found


def _augment(fits: Sequence[Sequence[bool]], start: int, owner: dict[int, int]) -> None:
    """Match `start`, moving others along the shortest path of columns that ends at a free one."""
    came_from: dict[int, int] = {}  # column -> the row from which the path reached it
    queue = [start]
    for row in queue:
        for column, fit in enumerate(fits[row]):
            if not fit or column in came_from:
                continue
            came_from[column] = row
            if column in owner:
                queue.append(owner[column])
                continue
            free = column
            while True:
                at = came_from[free]
                before = next((one for one, holder in owner.items() if holder == at), None)
                owner[free] = at
                if at == start or before is None:
                    return
                free = before


def heaviest_matching(weights: Sequence[Sequence[int]]) -> int:
    """The greatest total weight of pairs, each row and each column at most once (Hungarian method).

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
    owner = [0] * (columns + 1)  # 1-based; column 0 stands for the row that is being matched
    for row in range(1, rows + 1):
        owner[0], column = row, 0
        slack: list[float] = [float("inf")] * (columns + 1)
        came_from, seen = [0] * (columns + 1), [False] * (columns + 1)
        while owner[column]:
            seen[column] = True
            at, step, following = owner[column], float("inf"), 0
            for other in range(1, columns + 1):
                if seen[other]:
                    continue
                reduced = -weights[at - 1][other - 1] - price_row[at] - price_column[other]
                if reduced < slack[other]:
                    slack[other], came_from[other] = reduced, column
                if slack[other] < step:
                    step, following = slack[other], other
            for other in range(columns + 1):
                if seen[other]:
                    price_row[owner[other]] += int(step)
                    price_column[other] -= int(step)
                else:
                    slack[other] -= step
            column = following
        while column:
            owner[column] = owner[came_from[column]]
            column = came_from[column]
    return sum(weights[owner[column] - 1][column - 1] for column in range(1, columns + 1) if owner[column])
