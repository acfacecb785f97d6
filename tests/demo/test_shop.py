"""The shop of the demo: a busy first minute in which whatever can happen happens, the same every time."""

from pabal.demo.props import RECEIVING, RULES, SERVICES, SPEAKING
from pabal.demo.shop import BUSY, FIRST, day

OPENING = [said for number in range(FIRST, FIRST + BUSY) for said in day(number)]


def test_every_play_is_the_same() -> None:
    assert [said for number in range(FIRST, FIRST + BUSY) for said in day(number)] == OPENING


def test_the_opening_has_something_of_everything() -> None:
    assert {said.source for said in OPENING} == {*SPEAKING}
    assert {said.event_type for said in OPENING} == {
        "order.placed",
        "order.paid",
        "customer.seen",
        "mail.bounced",
        "stock.counted",
        "server.attacked",
    }
    assert {said.payload.get("card") for said in OPENING if said.event_type == "order.placed"} == {
        "good",
        "closed",
        "expired",
    }
    guests = [said for said in OPENING if said.event_type == "order.paid" and "discord_id" not in said.payload["user"]]
    assert len(guests) == 1


def test_whoever_is_named_is_on_stage() -> None:
    assert {said.more["target_service"] for said in OPENING if "target_service" in said.more} <= {*SERVICES}
    assert {*SPEAKING, *RECEIVING} <= {*SERVICES}
    assert {rule.event_pattern for rule in RULES} <= {said.event_type for said in OPENING}
