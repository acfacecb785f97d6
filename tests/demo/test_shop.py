"""The shop of the demo: the first minute includes every kind of event, and is the same in every run."""

from pabal.demo.seed_data import DEMO_RULES, DEMO_SERVICES, PUBLISHERS, SUBSCRIBED_TYPES
from pabal.demo.shop import BURST_ORDERS, FIRST_ORDER, order_events

OPENING = [event for number in range(FIRST_ORDER, FIRST_ORDER + BURST_ORDERS) for event in order_events(number)]


def test_every_run_publishes_the_same_events() -> None:
    assert [
        event for number in range(FIRST_ORDER, FIRST_ORDER + BURST_ORDERS) for event in order_events(number)
    ] == OPENING


def test_the_first_orders_include_every_kind_of_event() -> None:
    assert {event.source for event in OPENING} == {*PUBLISHERS}
    assert {event.event_type for event in OPENING} == {
        "order.placed",
        "order.paid",
        "customer.seen",
        "mail.bounced",
        "stock.counted",
        "server.attacked",
    }
    assert {event.payload.get("card") for event in OPENING if event.event_type == "order.placed"} == {
        "good",
        "closed",
        "expired",
    }
    guests = [
        event for event in OPENING if event.event_type == "order.paid" and "discord_id" not in event.payload["user"]
    ]
    assert len(guests) == 1


def test_every_named_person_exists() -> None:
    assert {event.options["target"] for event in OPENING if "target" in event.options} <= {*DEMO_SERVICES}
    assert {*PUBLISHERS, *SUBSCRIBED_TYPES} <= {*DEMO_SERVICES}
    assert {rule.event_pattern for rule in DEMO_RULES} <= {event.event_type for event in OPENING}
