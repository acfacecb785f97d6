"""The log of notifications, and one of them with its explanation, attempts and content."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from uuid import UUID

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.format import redact_payload, time_element
from pabal.console.i18n import translator_for
from pabal.console.pages import read_cursor, read_filters, read_query, redirect_with_flash, render_page
from pabal.core.errors import PabalError
from pabal.core.messages import duration_message
from pabal.db.bounded_scan import MAX_SCANNED_ROWS
from pabal.hub import Hub
from pabal.notifications.decision.decide import Criticality, NotificationChannel
from pabal.notifications.decision.texts import PART_TITLES, ExplanationLanguage, format_bilingual
from pabal.notifications.notifications import (
    OPERATOR_ACCESS,
    Notification,
    NotificationFilter,
    find_notification,
    list_notification_attempts,
    scan_notification_summaries,
)
from pabal.notifications.people.preferences import load_preferences
from pabal.notifications.requests import cancel_notification
from pabal.notifications.resend import list_resends, resend_notification
from pabal.notifications.states import NotificationState
from pabal.notifications.templates.render import RenderedText, render_notification
from pabal.notifications.templates.template import TEMPLATE_LOCALES
from pabal.operators.operators import OperatorSession
from pabal.trace.explain_notification import ExplanationLine, explain_notification
from pabal.web.pagination import decode_cursor, encode_cursor

NOTIFICATIONS_PATH = "/console/notifications"
STATES: tuple[NotificationState, ...] = ("pending", "sent", "failed", "suppressed")
CRITICALITY_BY_PRIORITY = {criticality.priority: criticality.value for criticality in Criticality}
PAGE_SIZE = 50
MARKED_TIME_PATTERN = re.compile("\ue000([0-9]{4}-[01][0-9]-[0-3][0-9]T[0-9:]{8}\\+00:00)\ue001")


@dataclass(frozen=True, slots=True)
class ExplanationSentence:
    """One sentence of an explanation, with its time unless the sentence contains one."""

    text: Markup
    at: datetime | None


async def notifications_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """List the notifications that match the filters, newest first."""
    filters = read_filters(request, "state", "recipient", "template")
    before = decode_cursor(read_cursor(request))
    criteria = NotificationFilter(filters.get("recipient"), read_notification_state(request), filters.get("template"))
    async with hub.autocommit() as tx:
        scan = await scan_notification_summaries(tx, criteria, before=before, limit=PAGE_SIZE)
    return render_page(
        request,
        "notifications/list.html",
        session=session,
        rows=scan.rows,
        filters=filters,
        states=STATES,
        template_keys=[template.key for template in hub.templates.all()],
        criticality_by_priority=CRITICALITY_BY_PRIORITY,
        scan_end=scan.end if scan.truncated else None,
        scan_limit=MAX_SCANNED_ROWS,
        next_cursor=encode_cursor(scan.end),
        current_cursor=before,
    )


def read_notification_state(request: Request) -> NotificationState | None:
    """Return the state to list, by default every state."""
    state = read_query(request, "state")
    return state if state in STATES else None


async def notification_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    notification_id: UUID = request.path_params["id"]
    language = translator_for(request).language
    async with hub.autocommit() as tx:
        notification = await find_notification(tx, notification_id, OPERATOR_ACCESS)
        attempts = await list_notification_attempts(tx, notification_id)
        explanation = await explain_notification(tx, notification_id, OPERATOR_ACCESS, language, mark_time)
        preferences = await load_preferences(tx, notification.recipient_id)
        resends = await list_resends(tx, notification_id)
    locale = template_language(notification.locale or preferences.locale or hub.settings.chat_language)
    content = render_redacted_notification(hub, notification, locale)
    return render_page(
        request,
        "notifications/detail.html",
        session=session,
        notification=notification,
        criticality=CRITICALITY_BY_PRIORITY[notification.priority],
        attempts=attempts,
        resends=resends,
        can_resend=notification.state == "failed" and not any(resend.is_pending_or_sent for resend in resends),
        format_duration=duration_message,
        explanation=group_explanation(explanation.lines, language),
        rendered=content if isinstance(content, RenderedText) else None,
        render_error=content,
        locale=locale,
    )


async def cancel_notification_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    notification_id: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await cancel_notification(tx, notification_id, OPERATOR_ACCESS, operator_actor(request, session))
    return redirect_with_flash(f"{NOTIFICATIONS_PATH}/{notification_id}", "notifications.cancel.done")


async def resend_notification_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    """Request the notification again and show the new one."""
    async with hub.transaction() as tx:
        resend = await resend_notification(
            tx, hub.templates, request.path_params["id"], operator_actor(request, session)
        )
    return redirect_with_flash(f"{NOTIFICATIONS_PATH}/{resend.id}", "notifications.resend.done")


def render_redacted_notification(hub: Hub, notification: Notification, locale: str) -> RenderedText | str:
    """Render the content with secrets of the payload hidden, or return the reason why it cannot be rendered."""
    payload = redact_payload(notification.payload)
    values: dict[str, Any] = {} if isinstance(payload, str) else payload  # nested too deeply to decode
    try:
        template = hub.templates.get(notification.template_key)
        return render_notification(template, NotificationChannel(notification.recipient_type), locale, values)
    except PabalError as error:
        return str(error)


def group_explanation(
    lines: list[ExplanationLine], language: ExplanationLanguage
) -> list[tuple[str, list[ExplanationSentence]]]:
    """Group the sentences under their headings."""
    return [
        (format_bilingual(PART_TITLES[part], language), [*map(render_explanation_sentence, part_lines)])
        for part, part_lines in groupby(lines, lambda line: line.part)
    ]


def render_explanation_sentence(line: ExplanationLine) -> ExplanationSentence:
    """Render a sentence. Times marked by `mark_time` become time elements."""
    parts = MARKED_TIME_PATTERN.split(line.says)
    text = Markup().join(render_marked_time(part) if index % 2 else part for index, part in enumerate(parts))
    return ExplanationSentence(text, line.at if len(parts) == 1 else None)


def render_marked_time(text: str) -> str:
    try:
        return time_element(datetime.fromisoformat(text))
    except ValueError:  # the marks occurred in foreign text
        return text


def template_language(locale: str) -> str:
    """Return the template language for a locale."""
    language = locale.partition("-")[0]
    return language if language in TEMPLATE_LOCALES else "en"


def mark_time(at: datetime) -> str:
    """Mark a time inside a sentence with two private-use characters."""
    return f"\ue000{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S+00:00}\ue001"


PAGES = (
    Page(NOTIFICATIONS_PATH, notifications_page),
    Page(NOTIFICATIONS_PATH + "/{id:uuid}", notification_page),
    Action(NOTIFICATIONS_PATH + "/{id:uuid}/cancel", cancel_notification_action),
    Action(NOTIFICATIONS_PATH + "/{id:uuid}/again", resend_notification_action),
)
