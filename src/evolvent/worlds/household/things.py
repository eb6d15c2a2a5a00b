"""Content of our rooms: furniture, objects, and the furniture for each object.

Types are named as in ALFWorld, so that a policy made for it knows them, and their abilities (to be cleaned,
heated, cooled or sliced) follow it too. The rooms and the locations of objects are our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["LIGHTS", "OPENABLE", "PROPERTIES", "ROOMS", "SPELLING", "Room", "furniture_for"]

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
"""Furniture with a door."""
LIGHTS = ("desklamp", "floorlamp")
"""Lights; they stand in furniture and cannot be taken."""


@dataclass(frozen=True, slots=True)
class Room:
    """A type of room.

    Args:
        furniture: type -> (maximum number in a small room, in a large one).
        locations_by_object: object type -> the types of furniture of this room that it may lie in or on.
    """

    furniture: Mapping[str, tuple[int, int]]
    locations_by_object: Mapping[str, tuple[str, ...]]


# What can be done with a thing: c clean, h heat, k cool (keep cold), s slice, r other things can lie in it, f fixed.
_KITCHEN = """
    apple chks countertop diningtable fridge sinkbasin garbagecan shelf cabinet microwave drawer
    bread hks countertop diningtable fridge garbagecan shelf cabinet microwave drawer
    tomato chks countertop diningtable fridge sinkbasin garbagecan shelf cabinet microwave drawer
    potato chks countertop diningtable fridge sinkbasin garbagecan shelf cabinet microwave drawer
    lettuce cks countertop diningtable fridge sinkbasin garbagecan shelf cabinet drawer
    egg chk countertop diningtable fridge sinkbasin garbagecan shelf cabinet microwave drawer
    mug chkr countertop diningtable cabinet shelf sinkbasin coffeemachine microwave fridge
    cup chkr countertop diningtable cabinet shelf sinkbasin fridge microwave drawer
    plate chkr countertop diningtable cabinet shelf sinkbasin fridge microwave drawer
    bowl ckr countertop diningtable cabinet shelf sinkbasin fridge microwave drawer
    pan ckr countertop diningtable stoveburner cabinet sinkbasin fridge drawer shelf
    pot ckr countertop diningtable stoveburner cabinet sinkbasin fridge drawer shelf
    fork c countertop diningtable drawer sinkbasin cabinet shelf
    spoon c countertop diningtable drawer sinkbasin cabinet shelf
    knife c countertop diningtable drawer sinkbasin cabinet shelf
    butterknife c countertop diningtable drawer sinkbasin cabinet shelf
    spatula c countertop diningtable drawer sinkbasin cabinet shelf
    ladle c countertop diningtable drawer sinkbasin cabinet shelf
    kettle c countertop diningtable stoveburner cabinet sinkbasin shelf drawer
    dishsponge c countertop drawer cabinet sinkbasin shelf garbagecan
    soapbottle - countertop cabinet drawer shelf sinkbasin garbagecan
    saltshaker - countertop diningtable cabinet drawer shelf
    peppershaker - countertop diningtable cabinet drawer shelf
    winebottle k countertop diningtable cabinet fridge shelf garbagecan drawer
    glassbottle - countertop diningtable cabinet shelf garbagecan
    papertowelroll - countertop diningtable shelf garbagecan
    houseplant f countertop diningtable shelf
"""
_BATHROOM = """
    soapbar c countertop sinkbasin bathtubbasin toilet cabinet drawer shelf garbagecan
    soapbottle - countertop toilet cabinet drawer shelf garbagecan bathtubbasin
    spraybottle - countertop toilet cabinet drawer shelf garbagecan
    toiletpaper - countertop toilet cabinet drawer shelf toiletpaperhanger garbagecan
    cloth c countertop bathtubbasin cabinet drawer shelf sinkbasin garbagecan
    handtowel - handtowelholder countertop cabinet bathtubbasin shelf
    towel - towelholder bathtubbasin cabinet shelf
    candle - countertop toilet cabinet drawer shelf bathtubbasin
    tissuebox - countertop toilet cabinet drawer shelf garbagecan
    scrubbrush - countertop toilet cabinet bathtubbasin garbagecan
    dishsponge c countertop sinkbasin bathtubbasin cabinet drawer shelf
    houseplant f countertop shelf
"""
_BEDROOM = """
    pen - desk sidetable drawer dresser shelf garbagecan
    pencil - desk sidetable drawer dresser shelf garbagecan
    book - bed desk sidetable drawer dresser shelf armchair
    cd - desk sidetable drawer dresser shelf garbagecan safe
    cellphone - bed desk sidetable drawer dresser shelf armchair safe
    creditcard - desk sidetable drawer dresser shelf armchair safe
    keychain - desk sidetable drawer dresser shelf armchair safe
    laptop - bed desk sidetable dresser armchair
    alarmclock - desk sidetable dresser shelf drawer
    watch - desk sidetable drawer dresser shelf safe
    pillow - bed armchair dresser laundryhamper
    teddybear - bed armchair dresser desk shelf
    cloth - drawer dresser laundryhamper bed shelf
    mug r desk sidetable dresser shelf
    bowl r desk sidetable dresser shelf
    tissuebox - desk sidetable dresser shelf drawer garbagecan
    desklamp f desk sidetable dresser
    floorlamp f dresser sidetable shelf
    houseplant f desk shelf dresser
"""
_LIVINGROOM = """
    remotecontrol - sofa armchair coffeetable sidetable tvstand drawer shelf
    newspaper - sofa armchair coffeetable sidetable drawer shelf garbagecan
    laptop - sofa armchair coffeetable sidetable tvstand diningtable
    watch - coffeetable sidetable tvstand drawer shelf safe
    keychain - sofa armchair coffeetable sidetable tvstand drawer safe
    creditcard - sofa armchair coffeetable sidetable tvstand drawer safe
    cellphone - sofa armchair coffeetable sidetable diningtable drawer shelf
    book - sofa armchair coffeetable sidetable tvstand drawer shelf diningtable
    pillow - sofa armchair ottoman
    vase - coffeetable sidetable shelf tvstand diningtable cabinet
    statue - coffeetable sidetable shelf tvstand diningtable cabinet
    box r sofa armchair coffeetable sidetable diningtable ottoman
    tissuebox - coffeetable sidetable shelf drawer garbagecan
    wateringcan - coffeetable sidetable shelf cabinet diningtable
    candle - coffeetable sidetable shelf tvstand cabinet drawer
    plate r coffeetable sidetable diningtable cabinet
    desklamp f sidetable tvstand diningtable
    floorlamp f sidetable shelf ottoman
    houseplant f coffeetable sidetable shelf diningtable
"""
_FURNITURE = {
    "kitchen": "cabinet 4 10 drawer 4 6 countertop 4 4 shelf 6 6 fridge 1 1 microwave 1 1 sinkbasin 1 1 "
    "diningtable 2 2 stoveburner 4 4 coffeemachine 1 1 toaster 1 1 garbagecan 1 1",
    "bathroom": "cabinet 4 6 drawer 4 6 countertop 3 3 shelf 5 5 sinkbasin 2 2 toilet 1 1 bathtubbasin 1 1 "
    "towelholder 3 3 handtowelholder 3 3 toiletpaperhanger 1 1 garbagecan 1 1",
    "bedroom": "bed 1 1 desk 3 3 drawer 4 8 dresser 3 3 sidetable 4 4 shelf 6 6 armchair 2 2 safe 1 1 "
    "laundryhamper 1 1 garbagecan 1 1",
    "livingroom": "sofa 2 2 armchair 3 3 coffeetable 2 2 sidetable 4 4 tvstand 1 1 drawer 4 6 shelf 5 6 cabinet 3 5 "
    "diningtable 2 2 ottoman 2 2 safe 1 1 garbagecan 1 1",
}
_OBJECT_TABLES = {"kitchen": _KITCHEN, "bathroom": _BATHROOM, "bedroom": _BEDROOM, "livingroom": _LIVINGROOM}
_ABILITIES = {
    "c": "cleanable",
    "h": "heatable",
    "k": "coolable",
    "s": "sliceable",
    "r": "isreceptacleobject",
}


def _parse_rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def _build_room(name: str) -> Room:
    tokens = _FURNITURE[name].split()
    counts = {tokens[i]: (int(tokens[i + 1]), int(tokens[i + 2])) for i in range(0, len(tokens), 3)}
    return Room(
        MappingProxyType(counts),
        MappingProxyType({row[0]: tuple(row[2:]) for row in _parse_rows(_OBJECT_TABLES[name])}),
    )


ROOMS: Mapping[str, Room] = MappingProxyType({name: _build_room(name) for name in _OBJECT_TABLES})
"""The types of rooms by name."""


def _collect_properties() -> dict[str, tuple[str, ...]]:
    """Collects the properties of each type; an ability in one room holds in all rooms."""
    names_by_kind: dict[str, dict[str, None]] = {}
    for table in _OBJECT_TABLES.values():
        for kind, letters, *_ in _parse_rows(table):
            names = names_by_kind.setdefault(kind, {})
            names.update({_ABILITIES[letter]: None for letter in letters if letter in _ABILITIES})
            names.update({} if "f" in letters else {"pickupable": None})
            names.update({"toggleable": None} if kind in LIGHTS else {})
    return {kind: tuple(names) for kind, names in names_by_kind.items()}


PROPERTIES: Mapping[str, tuple[str, ...]] = MappingProxyType(_collect_properties())
"""Type of thing -> what can be done with it ("pickupable", "heatable", ...)."""


def furniture_for(room_name: str, object_type: str) -> tuple[str, ...]:
    """Returns the types of furniture in a room that an object may lie in or on; empty if it does not belong there."""
    return ROOMS[room_name].locations_by_object.get(object_type, ())


_GAME_FILE_NAMES = (
    "AlarmClock Apple ArmChair BathtubBasin Bed Book Bowl Box Bread ButterKnife CD Cabinet Candle CellPhone Cloth "
    "CoffeeMachine CoffeeTable CounterTop CreditCard Cup Desk DeskLamp DiningTable DishSponge Drawer Dresser Egg "
    "FloorLamp Fork Fridge GarbageCan Glassbottle HandTowel HandTowelHolder HousePlant Kettle KeyChain Knife Ladle "
    "Laptop LaundryHamper Lettuce Microwave Mug Newspaper Ottoman Pan PaperTowelRoll Pen Pencil PepperShaker Pillow "
    "Plate Pot Potato RemoteControl Safe SaltShaker ScrubBrush Shelf SideTable SinkBasin SoapBar SoapBottle Sofa "
    "Spatula Spoon SprayBottle Statue StoveBurner TVStand TeddyBear TissueBox Toaster Toilet ToiletPaper "
    "ToiletPaperHanger Tomato Towel TowelHolder Vase Watch WateringCan WineBottle"
)
SPELLING: Mapping[str, str] = MappingProxyType({word.lower(): word for word in _GAME_FILE_NAMES.split()})
"""A type in lower case -> as game files write it."""
