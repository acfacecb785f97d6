"""The rules: which events make which notifications; added, changed, switched and removed."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from pabal.api.errors import status_of
from pabal.console.gate import Deed, Form, Look, by
from pabal.console.notices.form import BLANK, read, said_by
from pabal.console.notices.log import ROOM
from pabal.console.pages import confirm, confirmed, page, then
from pabal.console.texts import Texts, texts_for
from pabal.core.errors import Conflict, Invalid, Mistake
from pabal.notifications import rules
from pabal.notifications.plan import Channel
from pabal.notifications.rules import Draft, Rule, columns
from pabal.operators.operators import Session
from pabal.wiring import Hub

HERE = ROOM + "/rules"
MOST = 500
"""Rules on the page: people write them, so there are not many."""


async def every(hub: Hub, request: Request, session: Session) -> Response:
    t = texts_for(request)
    async with hub.autocommit() as tx:
        told = [(rule, does(t, rule)) for rule in await rules.every(tx, limit=MOST)]
    return page(request, "notifications/rules.html", session=session, rules=told)


async def new(hub: Hub, request: Request, session: Session) -> Response:
    return form(hub, request, session, BLANK)


async def one(hub: Hub, request: Request, session: Session) -> Response:
    async with hub.autocommit() as tx:
        rule = await rules.find(tx, request.path_params["id"])
    return form(hub, request, session, said_by(rule), rule=rule)


async def add(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    try:
        draft = Draft(**read(given))
        async with hub.transaction() as tx:
            await rules.add(tx, hub.catalogue, draft, by(request, session))
    except (Invalid, Conflict) as error:
        return form(hub, request, session, given, wrong=error)
    return then(HERE, "rule saved")


async def change(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Change what the form has otherwise; what it leaves as it was is not said to have changed."""
    async with hub.autocommit() as tx:
        rule = await rules.find(tx, request.path_params["id"])
    try:
        was, wanted = columns(rule), read(given)
        to = {name: value for name, value in wanted.items() if was[name] != value}
        if to:
            async with hub.transaction() as tx:
                await rules.change(tx, hub.catalogue, rule.id, to, by(request, session))
    except (Invalid, Conflict) as error:
        return form(hub, request, session, given, rule=rule, wrong=error)
    return then(HERE, "rule saved")


async def switch_on(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    return await switch(hub, request, session, on=True)


async def switch_off(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    return await switch(hub, request, session, on=False)


async def switch(hub: Hub, request: Request, session: Session, *, on: bool) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await rules.change(tx, hub.catalogue, row, {"is_active": on}, by(request, session))
    return then(HERE, "switched on" if on else "switched off")


async def remove(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await rules.find(tx, row)
        if not confirmed(given, 1):
            return confirm(request, session, says="remove rules", count=1, carries=given, back=HERE)
        await rules.remove(tx, row, by(request, session))
    return then(HERE, "rule removed")


def form(
    hub: Hub,
    request: Request,
    session: Session,
    given: Form,
    *,
    rule: Rule | None = None,
    wrong: Invalid | Conflict | None = None,
) -> Response:
    """The form with what somebody said, and beside each field what is wrong with it."""
    mistakes = wrong.mistakes if isinstance(wrong, Invalid) else [Mistake("name", str(wrong))] if wrong else []
    return page(
        request,
        "notifications/rule.html",
        status=status_of(type(wrong)) if wrong else 200,
        session=session,
        rule=rule,
        does=None if rule is None else does(texts_for(request), rule),
        given=given,
        wrong=by_field(mistakes),
        keys=[each.key for each in hub.catalogue.all()],
        channels=[*Channel],
    )


def by_field(mistakes: Iterable[Mistake]) -> dict[str, list[str]]:
    """Mistakes by the field of the form they are about: `recipients[1]` is about `recipients`."""
    found: dict[str, list[str]] = {}
    for each in mistakes:
        field = each.field.partition("[")[0].partition(".")[0]
        found.setdefault(field, []).append(each.why if each.field == field else str(each))
    return found


def does(t: Texts, rule: Rule) -> Markup:
    """A rule in words."""
    said: dict[str, Any] = {
        "events": coded([rule.event_pattern]),
        "to": coded(rule.recipients),
        "template": coded([rule.template_key]),
        "channels": ", ".join(t(f"via {channel}") for channel in rule.channels),
    }
    return Markup(t("rule does")).format(**said)  # noqa: S704 our own words, and what is put into them is escaped


def coded(words: Iterable[str]) -> Markup:
    return Markup(", ").join(Markup('<code class="wraps">{}</code>').format(word) for word in words)


PAGES = (
    Look(HERE, every),
    Look(HERE + "/new", new),
    Look(HERE + "/{id:uuid}", one),
    Deed(HERE, add),
    Deed(HERE + "/{id:uuid}", change),
    Deed(HERE + "/{id:uuid}/on", switch_on),
    Deed(HERE + "/{id:uuid}/off", switch_off),
    Deed(HERE + "/{id:uuid}/remove", remove),
)
