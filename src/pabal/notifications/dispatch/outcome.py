"""What can become of a claimed notification. A closed set: `match` over it ends in `assert_never`."""

from dataclasses import dataclass, field
from typing import Any, final

from pabal.notifications.decision.decide import DecisionSteps, SuppressReason
from pabal.notifications.templates.render import RenderedText
from pabal.queue.outcome import Dead, Retry, Snooze


@final
@dataclass(frozen=True, slots=True)
class NotificationSent:
    """The channel accepted it. `response` is what the channel returned."""

    response: dict[str, Any] = field(default_factory=dict[str, Any])


@final
@dataclass(frozen=True, slots=True)
class ToastRendered:
    """A toast to insert into the person's inbox, in the transaction that settles its notification."""

    rendered: RenderedText
    locale: str


@final
@dataclass(frozen=True, slots=True)
class NotificationSuppressed:
    """It is not sent, and nothing failed. `steps` lead to the reason."""

    reason: SuppressReason
    steps: DecisionSteps = ()


DispatchOutcome = NotificationSent | ToastRendered | NotificationSuppressed | Retry | Dead | Snooze
SendOutcome = NotificationSent | Retry | Dead | Snooze
"""What can become of a message handed to a channel."""
