"""Rehearse: what would become of a notice if it were asked for now, and what it would say. Nothing is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pabal.core.errors import Invalid
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import DeliveryDecision
from pabal.notifications.people.preferences import load_preferences as preference_of
from pabal.notifications.people.preferences import load_recipient_profiles
from pabal.notifications.requests import NotificationDraft, decide_draft, notification_draft_errors
from pabal.notifications.templates.render import RenderedText, render_notification
from pabal.notifications.templates.template import Template, VariableType

Q = load_queries(__file__)

SAMPLE_VALUES: Mapping[VariableType, Any] = {
    VariableType.INTEGER: 12900,
    VariableType.NUMBER: 9.5,
    VariableType.BOOLEAN: True,
}


@dataclass(frozen=True, slots=True)
class NotificationPreview:
    """What would be decided, and what would be shown, in which language."""

    decision: DeliveryDecision
    rendered: RenderedText
    locale: str


async def preview_notification(tx: Tx, draft: NotificationDraft, locale: str) -> NotificationPreview:
    """Decide and write a draft as its asking and its sending would; `locale` is the hub's own language."""
    if mistakes := [*notification_draft_errors(draft)]:
        raise Invalid(*mistakes)
    flags = await load_recipient_profiles(tx, [draft.recipient])
    now = await read_database_time(tx)
    spoken = draft.locale or (await preference_of(tx, draft.recipient)).locale or locale
    rendered = render_notification(draft.template, draft.channel, spoken, draft.template_payload)
    return NotificationPreview(decide_draft(draft, flags[draft.recipient], now), rendered, spoken)


async def read_database_time(tx: Tx) -> datetime:
    """The database's time: when a notice is due is said by it."""
    return await tx.value(Q.database_now)


def sample_payload(template: Template) -> dict[str, Any]:
    """A payload for whoever only wants to see a template: its texts are told the names of their variables."""
    return {name: SAMPLE_VALUES.get(kind, name.replace("_", " ")) for name, kind in template.variables.items()}
