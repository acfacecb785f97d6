"""Route: what a webhook is answered, once the hub knows how its conversation stands."""

from pabal.relay.receive import Received
from pabal.relay.skill import Skill, awaited, said
from pabal.relay.texts import Texts

BLOCKED = "BLOCKED"


def on_the_spot(received: Received, texts: Texts, prefix: str) -> Skill | None:
    """The hub's own answer to somebody whose message went to nobody; None when it did."""
    match received.state:
        case "BLOCKED":
            return said(texts.blocked)
        case "PENDING":
            return said(texts.pending)
        case "PAIRED" if received.is_disabled:
            return said(texts.disabled)
        case "PAIRED":
            return None
        case _:
            return said(texts.hint.format(prefix=prefix), quick=[f"{prefix}help"])


def passed_on(received: Received, waiting_text: str | None) -> Skill | None:
    """The answer to a message that is on its way to its bot: the first answer again, or that one will come.

    None when there is no callback for it to come by.
    """
    if received.answer is not None:
        return received.answer
    return awaited(waiting_text) if received.has_callback else None
