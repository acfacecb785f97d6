"""The billing service: a program with one event handler, as `pabal work --app pabal.demo.billing:hub` runs it."""

from pabal_client import App, Dead, Event, Retry

hub = App("billing")


@hub.on("order.placed")
async def charge_card(event: Event) -> Dead | Retry | None:
    """Charge a card. Some cards have expired, and some banks are closed for a while."""
    match event.payload.get("card"):
        case "expired":
            return Dead("the card has expired")
        case "closed":
            return Retry("the bank is closed", delay=20)
        case _:
            return None
