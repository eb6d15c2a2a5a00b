"""Fault 22: the clock jumps back. The order is that of the appends, and syncing goes on."""

from __future__ import annotations

from small_store import episode

from evolvent.store.log import DiskOperations
from evolvent.store.store import Store


def test_order_and_syncs_do_not_depend_on_the_clock(tmp_path):
    """Ten appends 30 ms apart: synced at the first after 200 ms, and at once when the clock jumped back."""
    times = [100.0]
    synced: list[int] = []
    appended = 0

    def sync(handle: int) -> None:
        synced.append(appended)

    with Store.open(tmp_path / "t", writing=True, disk=DiskOperations(sync=sync, clock=lambda: times[0])) as store:
        for number in range(10):
            appended += 1
            store.append(episode(9 - number))
            times[0] += 0.03
        assert synced == [8], "the first append that ended 200 ms or more after the last sync"
        times[0] = 5.0
        appended += 1
        store.append(episode(10))
        assert synced == [8, 11], "a clock that went back an hour must not stop the syncs for an hour"
        times[0] += 0.1
        appended += 1
        store.append(episode(11))
        assert synced == [8, 11]
        store.flush()
        store.flush()
        assert synced == [8, 11, 12]
    wanted = [f"e{number}" for number in (*range(9, -1, -1), 10, 11)]
    assert list(Store.open(tmp_path / "t").ids()) == wanted
    Store.open(tmp_path / "t").seal()
    assert list(Store.open(tmp_path / "t").ids()) == wanted
