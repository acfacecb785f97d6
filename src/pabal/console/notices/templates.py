"""The templates: what each says through each channel, tried with values of one's own."""

from collections.abc import Iterator
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.gate import Look
from pabal.console.notices.log import ROOM
from pabal.console.pages import page
from pabal.core.errors import NotFound
from pabal.notifications.plan import Channel
from pabal.notifications.rehearse import made_up
from pabal.notifications.render import Rendered, Unrenderable, render
from pabal.notifications.template import LOCALES, Template
from pabal.operators.operators import Session
from pabal.wiring import Hub


async def every(hub: Hub, request: Request, session: Session) -> Response:
    return page(request, "notifications/templates.html", session=session, every=hub.catalogue.all())


async def one(hub: Hub, request: Request, session: Session) -> Response:
    """One template with what it says, told made-up values or those in the address."""
    key = request.path_params["key"]
    if key not in hub.catalogue:
        raise NotFound(f"there is no template {key}")
    template = hub.catalogue.get(key)
    given = request.query_params.get("payload")
    values, unread = (made_up(template), "") if given is None else values_in(given)
    mistakes = [] if unread else template.wrong(values)
    return page(
        request,
        "notifications/template.html",
        status=400 if unread or mistakes else 200,
        session=session,
        it=template,
        payload=pretty(values) if given is None else given,
        unread=unread,
        mistakes=mistakes,
        written=[] if unread or mistakes else [*texts(template, values)],
    )


def values_in(given: str) -> tuple[dict[str, Any], str]:
    """The object somebody wrote, or why it is none."""
    try:
        read: object = msgspec.json.decode(given)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return {}, str(error)
    return (cast("dict[str, Any]", read), "") if isinstance(read, dict) else ({}, f"Expected `object`: {given[:40]}")


def texts(template: Template, values: dict[str, Any]) -> Iterator[tuple[Channel, str, Rendered]]:
    for channel in template.texts:
        for locale in LOCALES:
            yield channel, locale, rendered(template, channel, locale, values)


def rendered(template: Template, channel: Channel, locale: str, values: dict[str, Any]) -> Rendered:
    try:
        return render(template, channel, locale, values)
    except Unrenderable as error:
        return Rendered(None, str(error))


def pretty(values: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode()


PAGES = (
    Look(ROOM + "/templates", every),
    Look(ROOM + "/templates/{key}", one),
)
