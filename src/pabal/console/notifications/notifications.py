"""The log of notifications, and one of them: how it stands and why, what was tried, what it says."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from uuid import UUID

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.format import redact_payload, time_element
from pabal.console.guards import Action, Form, Page, operator_actor
from pabal.console.i18n import translator_for
from pabal.console.pages import read_filters, redirect_with_flash, render_page
from pabal.core.errors import PabalError
from pabal.core.messages import duration_message
from pabal.db.bounded_scan import MAX_SCANNED_ROWS
from pabal.hub import Hub
from pabal.notifications.decision.decide import Criticality, NotificationChannel
from pabal.notifications.decision.texts import PART_TITLES, ExplanationLanguage, format_bilingual
from pabal.notifications.notifications import (
    Notification,
    NotificationAccess,
    NotificationFilter,
    find_notification,
    list_notification_attempts,
    scan_notification_summaries,
)
from pabal.notifications.people.preferences import load_preferences
from pabal.notifications.requests import cancel_notification
from pabal.notifications.resend import list_resends, resend_notification
from pabal.notifications.templates.render import RenderedText, render_notification
from pabal.notifications.templates.template import TEMPLATE_LOCALES
from pabal.operators.operators import OperatorSession
from pabal.trace.explain_notification import ExplanationLine, explain_notification
from pabal.web.pagination import decode_cursor, encode_cursor

NOTIFICATIONS_PATH = "/console/notifications"
OPERATOR = NotificationAccess("hub", all_services=True)
STATES = ("pending", "sent", "failed", "suppressed")
CRITICALITY_BY_PRIORITY = {each.priority: each.value for each in Criticality}
PAGE_SIZE = 50
MARKED_TIME_PATTERN = re.compile("\ue000([0-9]{4}-[01][0-9]-[0-3][0-9]T[0-9:]{8}\\+00:00)\ue001")


@dataclass(frozen=True, slots=True)
class ExplanationSentence:
    """One sentence of an explanation, and when it happened unless it says so itself."""

    text: Markup
    at: datetime | None


async def notifications_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """Every notification, the newest first; what it is narrowed to is in the address."""
    sought = read_filters(request, "state", "recipient", "template")
    before = decode_cursor(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        sight = await scan_notification_summaries(tx, NotificationFilter(**sought), before=before, limit=PAGE_SIZE)
    return render_page(
        request,
        "notifications/list.html",
        session=session,
        rows=sight.rows,
        filters=sought,
        states=STATES,
        template_keys=[each.key for each in hub.templates.all()],
        criticality_by_priority=CRITICALITY_BY_PRIORITY,
        scan_end=sight.end if sight.truncated else None,
        scan_limit=MAX_SCANNED_ROWS,
        next_cursor=encode_cursor(sight.end),
        current_cursor=before,
    )


async def notification_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    row: UUID = request.path_params["id"]
    language = translator_for(request).language
    async with hub.autocommit() as tx:
        found = await find_notification(tx, row, OPERATOR)
        attempts = await list_notification_attempts(tx, row)
        explained = await explain_notification(tx, row, OPERATOR, language, mark_time)
        wanted = await load_preferences(tx, found.recipient_id)
        repeated = await list_resends(tx, row)
    locale = template_language(found.locale or wanted.locale or hub.settings.chat_language)
    words = render_redacted_notification(hub, found, locale)
    return render_page(
        request,
        "notifications/detail.html",
        session=session,
        notification=found,
        criticality=CRITICALITY_BY_PRIORITY[found.priority],
        attempts=attempts,
        resends=repeated,
        can_resend=found.state == "failed" and not any(each.is_pending_or_sent for each in repeated),
        format_duration=duration_message,
        explanation=group_explanation(explained.lines, language),
        rendered=words if isinstance(words, RenderedText) else None,
        render_error=words,
        locale=locale,
    )


async def cancel_notification_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await cancel_notification(tx, row, OPERATOR, operator_actor(request, session))
    return redirect_with_flash(f"{NOTIFICATIONS_PATH}/{row}", "called off")


async def resend_notification_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    """Ask for the same once more; it has a page of its own, which says what became of it."""
    async with hub.transaction() as tx:
        asked = await resend_notification(
            tx, hub.templates, request.path_params["id"], operator_actor(request, session)
        )
    return redirect_with_flash(f"{NOTIFICATIONS_PATH}/{asked.id}", "asked again")


def render_redacted_notification(hub: Hub, notification: Notification, locale: str) -> RenderedText | str:
    """What it says, with what a payload hides hidden here as well; or why it cannot be written."""
    payload = redact_payload(notification.payload)
    known: dict[str, Any] = {} if isinstance(payload, str) else payload  # nested too deeply to be read, it is only text
    try:
        template = hub.templates.get(notification.template_key)
        return render_notification(template, NotificationChannel(notification.recipient_type), locale, known)
    except PabalError as error:
        return str(error)


def group_explanation(
    lines: list[ExplanationLine], language: ExplanationLanguage
) -> list[tuple[str, list[ExplanationSentence]]]:
    """The sentences under the headings they belong to."""
    return [
        (format_bilingual(PART_TITLES[part], language), [*map(render_explanation_sentence, those)])
        for part, those in groupby(lines, lambda line: line.part)
    ]


def render_explanation_sentence(line: ExplanationLine) -> ExplanationSentence:
    """A sentence as the page has it: what `written` marked in it is a time like all others there."""
    parts = MARKED_TIME_PATTERN.split(line.says)
    says = Markup().join(render_marked_time(each) if place % 2 else each for place, each in enumerate(parts))
    return ExplanationSentence(says, line.at if len(parts) == 1 else None)


def render_marked_time(text: str) -> str:
    try:
        return time_element(datetime.fromisoformat(text))
    except ValueError:  # somebody did write the signs, into an answer of theirs
        return text


def template_language(locale: str) -> str:
    """The language a text is written in for a locale."""
    language = locale.partition("-")[0]
    return language if language in TEMPLATE_LOCALES else "en"


def mark_time(at: datetime) -> str:
    """A moment in the middle of a sentence, between two signs that nobody writes."""
    return f"\ue000{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S+00:00}\ue001"


PAGES = (
    Page(NOTIFICATIONS_PATH, notifications_page),
    Page(NOTIFICATIONS_PATH + "/{id:uuid}", notification_page),
    Action(NOTIFICATIONS_PATH + "/{id:uuid}/cancel", cancel_notification_action),
    Action(NOTIFICATIONS_PATH + "/{id:uuid}/again", resend_notification_action),
)
