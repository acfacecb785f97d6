"""The shop of the demo: a busy first minute in which whatever can happen happens, the same every time."""

from pabal.demo.seed_data import DEMO_RULES, DEMO_SERVICES, PUBLISHERS, SUBSCRIBED_TYPES
from pabal.demo.shop import BURST_ORDERS, FIRST_ORDER, order_events

OPENING = [said for number in range(FIRST_ORDER, FIRST_ORDER + BURST_ORDERS) for said in order_events(number)]


def test_every_play_is_the_same() -> None:
    assert [
        said for number in range(FIRST_ORDER, FIRST_ORDER + BURST_ORDERS) for said in order_events(number)
    ] == OPENING


def test_the_opening_has_something_of_everything() -> None:
    assert {said.source for said in OPENING} == {*PUBLISHERS}
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
    assert {said.options["target_service"] for said in OPENING if "target_service" in said.options} <= {*DEMO_SERVICES}
    assert {*PUBLISHERS, *SUBSCRIBED_TYPES} <= {*DEMO_SERVICES}
    assert {rule.event_pattern for rule in DEMO_RULES} <= {said.event_type for said in OPENING}
