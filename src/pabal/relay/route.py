"""Route: what a webhook is answered, once the hub knows how its conversation stands."""

from pabal.relay.receive import ReceiveResult
from pabal.relay.skill import SkillResponseDict, callback_response, text_response
from pabal.relay.texts import ChatTexts

BLOCKED = "BLOCKED"


def immediate_response(result: ReceiveResult, texts: ChatTexts, prefix: str) -> SkillResponseDict | None:
    """The hub's own answer to somebody whose message went to nobody; None when it did."""
    match result.state:
        case "BLOCKED":
            return text_response(texts.blocked)
        case "PENDING":
            return text_response(texts.pending)
        case "PAIRED" if result.is_disabled:
            return text_response(texts.disabled)
        case "PAIRED":
            return None
        case _:
            return text_response(texts.hint.format(prefix=prefix), quick_replies=[f"{prefix}help"])


def queued_response(result: ReceiveResult, waiting_text: str | None) -> SkillResponseDict | None:
    """The answer to a message that is on its way to its bot: the first answer again, or that one will come.

    None when there is no callback for it to come by.
    """
    if result.first_response is not None:
        return result.first_response
    return callback_response(waiting_text) if result.has_callback else None
