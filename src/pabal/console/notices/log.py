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

from pabal.api.page import cursor_at, place_of
from pabal.console.figures import moment
from pabal.console.gate import Deed, Form, Look, by
from pabal.console.mask import covered
from pabal.console.pages import chosen, page, then
from pabal.console.texts import texts_for
from pabal.core.errors import PabalError
from pabal.core.phrase import lasting
from pabal.core.sight import REACH
from pabal.notifications import preferences, read
from pabal.notifications.again import again, repeats
from pabal.notifications.cancel import cancel
from pabal.notifications.explain import Line, explain
from pabal.notifications.glance import glance
from pabal.notifications.plan import Channel, Criticality
from pabal.notifications.read import Filter, Notification, Reader
from pabal.notifications.reasons import PARTS, Language, say
from pabal.notifications.render import Rendered, render
from pabal.notifications.template import LOCALES
from pabal.operators.operators import Session
from pabal.wiring import Hub

ROOM = "/console/notifications"
OPERATOR = Reader("hub", all=True)
STATES = ("pending", "sent", "failed", "suppressed")
WEIGHTS = {each.priority: each.value for each in Criticality}
PAGE = 50
MARKED = re.compile("\ue000([0-9]{4}-[01][0-9]-[0-3][0-9]T[0-9:]{8}\\+00:00)\ue001")


@dataclass(frozen=True, slots=True)
class Told:
    """One sentence of an explanation, and when it happened unless it says so itself."""

    says: Markup
    at: datetime | None


async def log(hub: Hub, request: Request, session: Session) -> Response:
    """Every notification, the newest first; what it is narrowed to is in the address."""
    sought = chosen(request, "state", "recipient", "template")
    before = place_of(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        sight = await glance(tx, Filter(**sought), before=before, limit=PAGE)
    return page(
        request,
        "notifications/log.html",
        session=session,
        rows=sight.rows,
        sought=sought,
        states=STATES,
        keys=[each.key for each in hub.catalogue.all()],
        weight=WEIGHTS,
        tired=sight.end if sight.tired else None,
        reach=REACH,
        older=cursor_at(sight.end),
        later=before,
    )


async def one(hub: Hub, request: Request, session: Session) -> Response:
    row: UUID = request.path_params["id"]
    language = texts_for(request).language
    async with hub.autocommit() as tx:
        found = await read.find(tx, row, OPERATOR)
        attempts = await read.attempts(tx, row)
        explained = await explain(tx, row, OPERATOR, language, written)
        wanted = await preferences.get(tx, found.recipient_id)
        repeated = await repeats(tx, row)
    locale = spoken(found.locale or wanted.locale or hub.settings.chat_language)
    words = words_of(hub, found, locale)
    return page(
        request,
        "notifications/one.html",
        session=session,
        it=found,
        weight=WEIGHTS[found.priority],
        attempts=attempts,
        repeats=repeated,
        is_over=found.state == "failed" and not any(each.stands for each in repeated),
        lasting=lasting,
        why=in_parts(explained.lines, language),
        rendered=words if isinstance(words, Rendered) else None,
        unwritten=words,
        locale=locale,
    )


async def call_off(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await cancel(tx, row, OPERATOR, by(request, session))
    return then(f"{ROOM}/{row}", "called off")


async def send_again(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    """Ask for the same once more; it has a page of its own, which says what became of it."""
    async with hub.transaction() as tx:
        asked = await again(tx, hub.catalogue, request.path_params["id"], by(request, session))
    return then(f"{ROOM}/{asked.id}", "asked again")


def words_of(hub: Hub, notification: Notification, locale: str) -> Rendered | str:
    """What it says, with what a payload hides hidden here as well; or why it cannot be written."""
    payload = covered(notification.payload)
    known: dict[str, Any] = {} if isinstance(payload, str) else payload  # nested too deeply to be read, it is only text
    try:
        template = hub.catalogue.get(notification.template_key)
        return render(template, Channel(notification.recipient_type), locale, known)
    except PabalError as error:
        return str(error)


def in_parts(lines: list[Line], language: Language) -> list[tuple[str, list[Told]]]:
    """The sentences under the headings they belong to."""
    return [(say(PARTS[part], language), [*map(told, those)]) for part, those in groupby(lines, lambda line: line.part)]


def told(line: Line) -> Told:
    """A sentence as the page has it: what `written` marked in it is a time like all others there."""
    parts = MARKED.split(line.says)
    says = Markup().join(timed(each) if place % 2 else each for place, each in enumerate(parts))
    return Told(says, line.at if len(parts) == 1 else None)


def timed(written: str) -> str:
    try:
        return moment(datetime.fromisoformat(written))
    except ValueError:  # somebody did write the signs, into an answer of theirs
        return written


def spoken(locale: str) -> str:
    """The language a text is written in for a locale."""
    language = locale.partition("-")[0]
    return language if language in LOCALES else "en"


def written(at: datetime) -> str:
    """A moment in the middle of a sentence, between two signs that nobody writes."""
    return f"\ue000{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S+00:00}\ue001"


PAGES = (
    Look(ROOM, log),
    Look(ROOM + "/{id:uuid}", one),
    Deed(ROOM + "/{id:uuid}/cancel", call_off),
    Deed(ROOM + "/{id:uuid}/again", send_again),
)
