"""The rules of the back office: validations by hand, and every state of a small office."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from evolvent.errors import ConfigError
from evolvent.worlds.backoffice.applications import APPLICATIONS, Application, Field, Row
from evolvent.worlds.backoffice.jobs import Change, Job, Pick, describe_job
from evolvent.worlds.backoffice.office import Office, State
from evolvent.worlds.backoffice.rules import Act, apply_act, find_obstacle, possible_acts
from evolvent.worlds.backoffice.text import format_act, parse_act, render_outcome
from evolvent.worlds.backoffice.world import Scene, solve

CITIES = ("oslo", "rome")
PEOPLE = Application(
    "customers",
    "customer",
    (
        Field("name", choices=("adams", "baker"), listed=True),
        Field("city", choices=CITIES, listed=True),
    ),
    numbered=False,
    rows=1,
)
ORDERS = Application(
    "orders",
    "order",
    (
        Field("number", "number", listed=True),
        Field("customer", "link", link="customers", listed=True),
        Field("city", choices=CITIES, needed=False),
        Field("state", choices=("open", "shipped"), named=False),
    ),
    numbered=True,
    rows=1,
)
SMALL = Office(((("adams", "oslo"),), ((51, "adams", None, "open"),)), {}, {"customers": PEOPLE, "orders": ORDERS})
SHIP = Job("orders", Pick("named", "", 51), Change("finish", (("state", "shipped"),)))
MOVE = Job("customers", Pick("of", "customer", None, "orders", 51), Change("set", (("city", "rome"),)))

FULL = Office(
    (
        (("adams", "oslo", "gold", 7, "anna"), ("baker", "rome", "plus", 9, "anna")),
        ((51, "adams", "lamp", 5, 3, None, "open"), (60, "adams", "desk", 8, None, "rome", "packed")),
        ((70, "adams", 51, 6, None, "open"),),
        (("anna", "sales", "oslo", 12), ("boris", "sales", "rome", 14)),
        ((80, "baker", "noise", 4, None, "open"),),
    ),
    {
        ("customers", "credit"): (4, 20),
        ("orders", "amount"): (3, 18),
        ("invoices", "total"): (5, 16),
        ("staff", "room"): (6, 30),
        ("tickets", "hours"): (3, 25),
    },
)


def play(office: Office, texts: str) -> tuple[State, str]:
    """Actions apart by `;`, all of them possible."""
    state, seen = office.start, ""
    for text in texts.split(" ; "):
        act = parse_act(text)
        assert isinstance(act, Act), text
        assert not find_obstacle(office, state, act), text
        outcome = apply_act(office, state, act)
        state, seen = outcome.state, render_outcome(office, outcome)
    return state, seen


def test_a_transcript_by_hand() -> None:
    """Shipping needs a city that stands in another window; what is not saved stays there meanwhile."""
    asked = "set the state of order 51 to shipped with what that needs"
    assert describe_job(FULL, SHIP) == asked
    plan = solve(FULL, [SHIP])
    assert [step.action for step in plan] == [
        "open orders",
        "show 51",
        "set state shipped",
        "save",
        "open customers",
        "show adams",
        "open orders",
        "set city oslo",
        "save",
        "done",
    ]
    assert [step.thought for step in plan] == [
        f"next i have to {asked} . i open orders",
        "i open order 51",
        "state should be shipped",
        "all is filled in , i save",
        "it is refused , it needs the city of its customer , which is adams . first i read the city of customer adams "
        ". i open customers",
        "i open customer adams",
        "i open orders",
        "city should be oslo , as customer adams has it",
        "all is filled in , i save",
        "all is done",
    ]
    seen = [play(FULL, " ; ".join(step.action for step in plan[:count]))[1] for count in range(1, len(plan))]
    saved = "customer adams ; item lamp ; amount 5 ; day 3 ;"
    assert seen == [
        "orders page 1 of 1 : number customer item amount ; 51 adams lamp 5 ; 60 adams desk 8",
        f"order 51 : {saved} city none ; state open",
        f"order 51 not saved : {saved} city none ; state shipped",
        f"refused , a shipped order needs the city of its customer . order 51 not saved : {saved} city none ; "
        "state shipped",
        "customers page 1 of 1 : name city level credit ; adams oslo gold 7 ; baker rome plus 9",
        "customer adams : city oslo ; level gold ; credit 7 ; agent anna",
        f"order 51 not saved : {saved} city none ; state shipped",
        f"order 51 not saved : {saved} city oslo ; state shipped",
        "saved order 51 . orders page 1 of 1 : number customer item amount ; 51 adams lamp 5 ; 60 adams desk 8",
    ]


@pytest.mark.parametrize(
    ("texts", "refused"),
    [
        ("open orders ; show 51 ; set amount 19 ; save", "amount must be from 3 to 18"),
        ("open orders ; show 51 ; set amount 2 ; save", "amount must be from 3 to 18"),
        ("open orders ; show 51 ; set day 29 ; save", "day must be from 1 to 28"),
        ("open orders ; new ; set customer adams ; set amount 5 ; save", "item must be filled in"),
        ("open orders ; new ; save", "customer must be filled in"),
        (
            "open orders ; show 51 ; set state shipped ; set city rome ; save",
            "a shipped order needs the city of its customer",
        ),
        ("open invoices ; show 70 ; set customer baker ; save", "an invoice needs the customer of its order"),
        ("open invoices ; show 70 ; set state paid ; set day 4 ; save", "a paid invoice needs the day of its order"),
        ("open invoices ; show 70 ; set order 60 ; set state paid ; save", "a paid invoice needs the day of its order"),
        (
            "open tickets ; show 80 ; set state closed ; set agent boris ; save",
            "a closed ticket needs the agent of its customer",
        ),
        ("open customers ; show adams ; delete", "orders refer to this customer"),
        ("open customers ; show baker ; delete", "tickets refer to this customer"),
        ("open orders ; show 51 ; delete", "invoices refer to this order"),
        ("open staff ; show anna ; delete", "customers refer to this clerk"),
        ("open staff ; new ; set name anna ; set team sales ; set city rome ; set room 9 ; save", "the name is taken"),
        ("open tickets ; new ; set customer baker ; open tickets ; set topic noise ; save", "hours must be filled in"),
        # a record that a form refers to may be gone by the time it is saved
        (
            "open tickets ; new ; set customer adams ; set topic noise ; set hours 5 ; set agent boris ; open staff ; "
            "show boris ; delete ; open tickets ; save",
            "there is no such agent",
        ),
    ],
)
def test_what_is_refused(texts: str, refused: str) -> None:
    """And nothing is changed by it."""
    state, seen = play(FULL, texts)
    assert seen.startswith(f"refused , {refused} . ")
    before, _ = play(FULL, texts.rpartition(" ; ")[0])
    assert state == before


@pytest.mark.parametrize(
    ("texts", "told", "row"),
    [
        ("open orders ; show 51 ; set amount 18 ; save", "saved order 51", (51, "adams", "lamp", 18, 3, None, "open")),
        (
            "open orders ; new ; set customer baker ; set item vase ; set amount 3 ; save",
            "saved order 61",
            (61, "baker", "vase", 3, None, None, "open"),
        ),
        (
            "open invoices ; new ; set order 60 ; set customer adams ; set total 7 ; save",
            "saved invoice 71",
            (71, "adams", 60, 7, None, "open"),
        ),
        (
            "open staff ; new ; set name clara ; set team sales ; set city rome ; set room 9 ; save",
            "saved clerk clara",
            ("clara", "sales", "rome", 9),
        ),
        # the number of a deleted record is not given again
        (
            "open orders ; show 60 ; delete ; new ; set customer baker ; set item vase ; set amount 3 ; save",
            "saved order 61",
            (61, "baker", "vase", 3, None, None, "open"),
        ),
        (
            "open tickets ; show 80 ; set state closed ; set agent anna ; save",
            "saved ticket 80",
            (80, "baker", "noise", 4, "anna", "closed"),
        ),
    ],
)
def test_what_is_saved(texts: str, told: str, row: Row) -> None:
    state, seen = play(FULL, texts)
    assert seen.startswith(f"{told} . ")
    assert row in {found for table in state.tables for found in table}
    changed = sum(len(set(after) ^ set(before)) for after, before in zip(state.tables, FULL.tables, strict=True))
    assert changed == (1 if "new" in texts and "delete" not in texts else 2)


def test_windows_and_pages() -> None:
    rows = tuple((50 + n, "adams", "lamp" if n % 2 else "desk", 5 + n, None, None, "open") for n in range(7))
    office = replace(FULL, tables=(FULL.tables[0], rows, (), FULL.tables[3], ()))
    assert play(office, "open orders ; next")[1] == (
        "orders page 2 of 2 : number customer item amount ; 55 adams lamp 10 ; 56 adams desk 11"
    )
    assert play(office, "open orders ; find item lamp")[1] == (
        "orders with item lamp page 1 of 1 : number customer item amount ; 51 adams lamp 6 ; 53 adams lamp 8 ; "
        "55 adams lamp 10"
    )
    assert play(office, "open orders ; find item vase")[1].endswith(": number customer item amount ; nothing")
    assert play(office, "open orders ; find item lamp ; open staff ; open orders")[1].startswith(
        "orders with item lamp"
    )
    assert play(office, "open orders ; next ; back")[1].startswith("orders page 1 of 2")
    assert play(office, "open orders ; show 53 ; set amount 9 ; back ; show 53")[1].startswith("order 53 : ")
    assert play(office, "open invoices")[1].endswith("; nothing")


@pytest.mark.parametrize(
    ("texts", "text", "why"),
    [
        ("", "show 51", "closed"),
        ("", "back", "closed"),
        ("", "open safe", "value"),
        ("open orders", "save", "form"),
        ("open orders", "set amount 5", "form"),
        ("open orders", "delete", "form"),
        ("open orders", "show 52", "record"),
        ("open orders", "show adams", "record"),
        ("open orders", "next", "last"),
        ("open orders", "back", "first"),
        ("open orders", "find number 51", "field"),
        ("open orders", "find day none", "value"),
        ("open orders", "find colour red", "field"),
        ("open orders", "find item adams", "value"),
        ("open orders ; show 51", "show 60", "table"),
        ("open orders ; show 51", "find item desk", "table"),
        ("open orders ; show 51", "new", "table"),
        ("open orders ; show 51", "set number 52", "field"),
        ("open orders ; show 51", "set item none", "value"),
        ("open orders ; show 51", "set amount 41", "value"),
        ("open orders ; show 51", "set customer clark", "value"),
        ("open orders ; show 51", "set amount lamp", "value"),
        ("open customers ; show adams", "set name baker", "field"),
        ("open orders ; new", "delete", "record"),
        ("open orders ; new", "set number 99", "field"),
    ],
)
def test_what_is_impossible(texts: str, text: str, why: str) -> None:
    state = play(FULL, texts)[0] if texts else FULL.start
    act = parse_act(text)
    assert isinstance(act, Act)
    assert find_obstacle(FULL, state, act) == why
    assert act not in set(possible_acts(FULL, state))


def reachable(office: Office, rows: int) -> dict[State, int]:
    """Every state of tables of at most so many rows, with the fewest actions that lead there."""
    found, waiting = {office.start: 0}, deque([office.start])
    while waiting:
        state = waiting.popleft()
        for act in possible_acts(office, state):
            after = apply_act(office, state, act).state
            if after not in found and all(len(table) <= rows for table in after.tables):
                found[after] = found[state] + 1
                waiting.append(after)
    return found


@pytest.fixture(scope="module")
def states() -> dict[State, int]:
    return reachable(SMALL, 1)


def test_every_state_of_a_small_office(states: dict[State, int]) -> None:
    """What is listed is possible and what is not is not; exactly one content of the tables is a success."""
    assert len(states) > 500
    ship, move = Scene.of(SMALL, [SHIP]), Scene.of(SMALL, [MOVE])
    every = {Act(verb) for verb in ("save", "delete", "back", "next", "new", "done")}
    every |= {Act("open", name) for name in ("customers", "orders", "staff")}
    every |= {Act("show", "", key) for key in ("adams", "baker", 51, 52)}
    fields = ("name", "number", "city", "customer", "state")
    every |= {
        Act(verb, field, value)
        for verb in ("set", "find")
        for field in fields
        for value in (None, "adams", "baker", "oslo", "rome", "open", "shipped", 51)
    }
    for state in list(states)[::7]:
        listed = set(possible_acts(SMALL, state))
        assert listed <= every
        assert not [act for act in listed if find_obstacle(SMALL, state, act)]
        for act in every - listed:  # a field may be set to what it is, and things may be looked for that are not there
            assert find_obstacle(SMALL, state, act) or act.verb in ("set", "find")
    for state in states:
        people, orders = state.tables
        assert ship.is_solved(state) == (
            people == (("adams", "oslo"),) and orders == ((51, "adams", "oslo", "shipped"),)
        )
        assert move.is_solved(state) == (people == (("adams", "rome"),) and orders == ((51, "adams", None, "open"),))


def test_the_expert_takes_a_shortest_way(states: dict[State, int]) -> None:
    """For `set` with nothing to look up; where it must find out what is needed it takes a longer one."""
    named = replace_pick(MOVE, Pick("named", "", "adams"))
    for job, spare in ((named, 0), (MOVE, 2), (SHIP, 4)):
        scene = Scene.of(SMALL, [job])
        fewest = min(steps for state, steps in states.items() if scene.is_solved(state))
        assert len(solve(SMALL, [job])) == fewest + 1 + spare
        state, _ = play(SMALL, " ; ".join(step.action for step in solve(SMALL, [job])))
        assert scene.is_solved(state)


def replace_pick(job: Job, pick: Pick) -> Job:
    return job._replace(pick=pick)


def test_saved_records_stay_sound(states: dict[State, int]) -> None:
    """No sequence of actions brings the tables into a state that a validation forbids."""
    for people, orders in {state.tables for state in states}:
        known = {row[0]: row[1] for row in people}
        for _, customer, city, state in orders:
            assert customer in known
            # the customer may have moved after the order was shipped, but a shipped order always has a city
            assert state == "open" or city is not None


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (Job("orders", Pick("by", "item", "lamp"), Change("drop")), "delete the order with item lamp"),
        (
            Job(
                "orders",
                Pick("both", "customer", "adams", "item", "desk"),
                Change("copy", (("city", None),), ("staff", "anna", "city")),
            ),
            "set the city of the order with customer adams and item desk to the city of clerk anna",
        ),
        (
            Job("customers", Pick("largest", "credit"), Change("ticket", (("topic", "noise"), ("hours", 5)))),
            "add a ticket for the customer with the largest credit with topic noise and hours 5",
        ),
        (
            Job("orders", Pick("of", "order", None, "invoices", 70), Change("limit", (("amount", 33),))),
            "set the amount of the order of invoice 70 to 33 or as near as can be",
        ),
        (
            Job("orders", Pick("named", "", 60), Change("invoice", (("total", 5),))),
            "add an invoice for order 60 with total 5",
        ),
    ],
)
def test_jobs_in_words(job: Job, told: str) -> None:
    assert describe_job(FULL, job) == told


@pytest.mark.parametrize(
    "job",
    [
        Job("orders", Pick("by", "customer", "adams"), Change("drop")),  # two of them
        Job("orders", Pick("named", "", 51), Change("drop")),  # an invoice refers to it
        Job("orders", Pick("named", "", 99), Change("drop")),
        Job("orders", Pick("named", "", 51), Change("set", (("item", "lamp"),))),  # no change
        Job("orders", Pick("named", "", 51), Change("set", (("amount", 30),))),  # out of bounds
        Job(
            "invoices", Pick("named", "", 70), Change("copy", (("day", None),), ("orders", 60, "day"))
        ),  # nothing there
    ],
)
def test_jobs_that_cannot_be_done(job: Job) -> None:
    with pytest.raises(ConfigError, match="invalid job"):
        Scene.of(FULL, [job])


def test_actions_are_read_as_they_are_written() -> None:
    for state in (
        play(FULL, "open orders")[0],
        play(FULL, "open customers ; new")[0],
        play(FULL, "open orders ; show 51")[0],
    ):
        for act in possible_acts(FULL, state):
            assert parse_act(format_act(act)) == act
            assert parse_act(f"  {format_act(act).upper()}\n") == act
    assert set(FULL.names) == set(APPLICATIONS)
