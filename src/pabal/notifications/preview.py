"""Preview a notification: what would be decided and shown if it were requested now. Nothing is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pabal.core.errors import Invalid
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import DeliveryDecision
from pabal.notifications.people.preferences import load_preferences, load_recipient_profiles
from pabal.notifications.requests import (
    NotificationDraft,
    decide_draft,
    notification_draft_errors,
    read_database_time,
)
from pabal.notifications.templates.render import RenderedText, render_notification
from pabal.notifications.templates.template import Template, VariableType

SAMPLE_VALUES: Mapping[VariableType, Any] = {
    VariableType.INTEGER: 12900,
    VariableType.NUMBER: 9.5,
    VariableType.BOOLEAN: True,
}


@dataclass(frozen=True, slots=True)
class NotificationPreview:
    """The decision and the rendered text, in which language."""

    decision: DeliveryDecision
    rendered: RenderedText
    locale: str


async def preview_notification(tx: Tx, draft: NotificationDraft, default_locale: str) -> NotificationPreview:
    """Decide and render a draft. `default_locale` is for recipients whose language is not known."""
    if errors := [*notification_draft_errors(draft)]:
        raise Invalid(*errors)
    recipient = (draft.recipient, draft.source)
    profiles = await load_recipient_profiles(tx, [recipient])
    decision = decide_draft(draft, profiles[recipient], await read_database_time(tx))
    locale = draft.locale or (await load_preferences(tx, draft.recipient)).locale or default_locale
    rendered = render_notification(draft.template, draft.channel, locale, draft.template_payload)
    return NotificationPreview(decision, rendered, locale)


def sample_payload(template: Template) -> dict[str, Any]:
    """A payload to preview a template with: text variables show their own names."""
    return {
        name: SAMPLE_VALUES.get(variable_type, name.replace("_", " "))
        for name, variable_type in template.variables.items()
    }
