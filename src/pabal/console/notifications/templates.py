"""The templates: what each says through each channel, tried with values of one's own."""

from collections.abc import Iterator
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.guards import Page
from pabal.console.notifications.notifications import NOTIFICATIONS_PATH
from pabal.console.pages import render_page
from pabal.core.errors import NotFound
from pabal.hub import Hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.preview import sample_payload
from pabal.notifications.templates.render import RenderedText, Unrenderable, render_notification
from pabal.notifications.templates.template import TEMPLATE_LOCALES, Template
from pabal.operators.operators import OperatorSession


async def templates_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return render_page(request, "notifications/templates.html", session=session, templates=hub.templates.all())


async def template_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """One template with what it says, told made-up values or those in the address."""
    key = request.path_params["key"]
    if key not in hub.templates:
        raise NotFound(f"there is no template {key}")
    template = hub.templates.get(key)
    given = request.query_params.get("payload")
    values, unread = (sample_payload(template), "") if given is None else parse_preview_payload(given)
    mistakes = [] if unread else template.payload_errors(values)
    return render_page(
        request,
        "notifications/template.html",
        status=400 if unread or mistakes else 200,
        session=session,
        template=template,
        payload=indented_json(values) if given is None else given,
        parse_error=unread,
        field_errors=mistakes,
        previews=[] if unread or mistakes else [*preview_texts(template, values)],
    )


def parse_preview_payload(text: str) -> tuple[dict[str, Any], str]:
    """The object somebody wrote, or why it is none."""
    try:
        read: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return {}, str(error)
    return (cast("dict[str, Any]", read), "") if isinstance(read, dict) else ({}, f"Expected `object`: {text[:40]}")


def preview_texts(
    template: Template, values: dict[str, Any]
) -> Iterator[tuple[NotificationChannel, str, RenderedText]]:
    for channel in template.texts:
        for locale in TEMPLATE_LOCALES:
            yield channel, locale, render_or_error(template, channel, locale, values)


def render_or_error(
    template: Template, channel: NotificationChannel, locale: str, values: dict[str, Any]
) -> RenderedText:
    try:
        return render_notification(template, channel, locale, values)
    except Unrenderable as error:
        return RenderedText(None, str(error))


def indented_json(values: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode()


PAGES = (
    Page(NOTIFICATIONS_PATH + "/templates", templates_page),
    Page(NOTIFICATIONS_PATH + "/templates/{key}", template_page),
)
