"""Templates of notifications, with a preview per channel and language."""

from collections.abc import Iterator
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Page
from pabal.console.notifications.notifications import NOTIFICATIONS_PATH
from pabal.console.pages import MAX_FIELD_LENGTH, read_query, render_page
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
    """Preview a template with the payload of the query string, or with sample values."""
    key = request.path_params["key"]
    if key not in hub.templates:
        raise NotFound(f"No such template: {key[:64]}")
    template = hub.templates.get(key)
    payload_text = read_query(request, "payload", MAX_FIELD_LENGTH)
    if payload_text is None:
        values, parse_error = sample_payload(template), ""
        payload_text = indented_json(values)
    else:
        values, parse_error = parse_preview_payload(payload_text)
    field_errors = [] if parse_error else template.payload_errors(values)
    return render_page(
        request,
        "notifications/template.html",
        status=400 if parse_error or field_errors else 200,
        session=session,
        template=template,
        payload=payload_text,
        parse_error=parse_error,
        field_errors=field_errors,
        previews=[] if parse_error or field_errors else [*preview_texts(template, values)],
    )


def parse_preview_payload(text: str) -> tuple[dict[str, Any], str]:
    """Return the JSON object, or the reason why the text is none."""
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return {}, str(error)
    return (cast("dict[str, Any]", value), "") if isinstance(value, dict) else ({}, f"Expected `object`: {text[:40]}")


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
