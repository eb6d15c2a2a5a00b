"""Tasks by id, by index and by panel; what clients may bring themselves."""

from __future__ import annotations

import asyncio
import threading

import pytest

from evolvent.errors import ConfigError, SampleInvalid, WorldError
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.wire import NotFound, encode_task
from evolvent.trajectory import Task
from tests.serve.served import SIZES, Echo, small_worlds


def run(work):
    return asyncio.run(work)


async def every(catalogue, world):
    return [await catalogue.get_by_index(world, index) for index in range(await catalogue.count_tasks(world))]


def test_indices_go_through_train_dev_and_test_of_all_tiers():
    worlds = small_worlds(["crafting"])
    tasks = run(every(TaskIndex(worlds), "crafting"))
    crafting = worlds["crafting"]
    expected = [
        task for split in ("train", "dev", "test") for tier in crafting.tiers for task in crafting.tasks(split, tier)
    ]
    assert tasks == expected
    assert len(crafting.tasks("train", "seen")) == SIZES.train
    assert tasks[SIZES.train].split == "train" and tasks[SIZES.train].tier == crafting.tiers[1]


def test_ids_find_their_tasks():
    catalogue = TaskIndex(small_worlds(["crafting"]))

    async def found():
        tasks = await every(catalogue, "crafting")
        return [(await catalogue.get_by_id("crafting", task.id)) is task for task in tasks]

    assert all(run(found()))


def test_an_unknown_id_names_the_one_that_begins_alike():
    catalogue = TaskIndex(small_worlds(["crafting"]))
    known = run(every(catalogue, "crafting"))[3].id

    async def ask(id):
        await catalogue.get_by_id("crafting", id)

    with pytest.raises(NotFound, match=f"did you mean '{known}'"):
        run(ask(known[:9] + "zzz"))
    with pytest.raises(NotFound, match="its panels list them"):
        run(ask("z"))
    with pytest.raises(NotFound, match="did you mean 'crafting'"):
        run(catalogue.count_tasks("craftig"))


@pytest.mark.parametrize("index", [-1, 40, 10**9])
def test_an_index_out_of_range_names_the_range(index):
    with pytest.raises(ConfigError, match="expected 0 to 39"):
        run(TaskIndex({"echo": Echo()}).get_by_index("echo", index))


def test_panels_by_name():
    worlds = small_worlds(["crafting"])
    catalogue = TaskIndex(worlds)
    assert run(catalogue.get_panel("crafting", "dev", "evo")) == worlds["crafting"].tasks("dev", "evo")
    with pytest.raises(ConfigError) as caught:
        run(catalogue.get_panel("crafting", "trian", "sean"))
    assert [problem.hint for problem in caught.value.problems] == ["did you mean 'train'?", "did you mean 'seen'?"]


def test_a_row_stands_for_the_task_of_the_panel():
    catalogue = TaskIndex({"echo": Echo()})
    known = run(catalogue.get_by_index("echo", 0))
    relabelled = {**encode_task(known), "tier": "combo", "split": "test"}
    assert run(catalogue.get("echo", relabelled)) is known
    assert run(catalogue.get("echo", known.id)) is known


def test_specs_of_clients_are_refused_unless_allowed():
    own = Task("echo", "1", {"number": 999})
    with pytest.raises(NotFound, match="allow_specs"):
        run(TaskIndex({"echo": Echo()}).get("echo", encode_task(own)))
    assert run(TaskIndex({"echo": Echo()}, specs=True).get("echo", encode_task(own))) == own
    foreign = encode_task(Task("maze", "1", {}))
    with pytest.raises(ConfigError, match="'maze'"):
        run(TaskIndex({"echo": Echo()}, specs=True).get("echo", foreign))
    with pytest.raises(SampleInvalid):
        run(TaskIndex({"echo": Echo()}, specs=True).get("echo", {**encode_task(own), "id": "0" * 32}))


def test_panels_are_dealt_once_and_off_the_loop():
    class Slow(Echo):
        dealt, threads = 0, frozenset()

        def specs(self):
            self.dealt += 1
            self.threads |= {threading.current_thread()}
            return super().specs()

    world = Slow()
    catalogue = TaskIndex({"echo": world})

    async def together():
        await asyncio.gather(*(catalogue.get_by_index("echo", index) for index in range(10)))

    run(together())
    assert world.dealt == 1 and threading.main_thread() not in world.threads


def test_a_world_that_cannot_be_dealt_is_a_typed_error_and_may_recover():
    class Broken(Echo):
        fails = True

        def specs(self):
            if self.fails:
                raise OSError("no disk")
            return super().specs()

    world = Broken()
    catalogue = TaskIndex({"echo": world})

    async def twice():
        with pytest.raises(WorldError, match="no disk"):
            await catalogue.count_tasks("echo")
        world.fails = False
        return await catalogue.count_tasks("echo")

    assert run(twice()) == 40
