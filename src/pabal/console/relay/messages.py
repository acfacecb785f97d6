"""Messages, for an operator: what people wrote, what became of it, and the answers that did not get through."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.page import cursor_of, place_of
from pabal.console.gate import Look
from pabal.console.pages import chosen, page
from pabal.console.relay.conversations import meant, raw
from pabal.console.relay.room import PAGE, ROOM
from pabal.console.texts import texts_for
from pabal.console.timeline import timeline
from pabal.core.errors import Invalid
from pabal.operators.operators import Session
from pabal.relay import messages, roster
from pabal.relay.answers import failures
from pabal.relay.messages import ALL, Chosen, Status
from pabal.relay.story import Named, story
from pabal.wiring import Hub


async def every(hub: Hub, request: Request, session: Session) -> Response:
    """Messages, the newest first; what they are narrowed to is in the address."""
    said = chosen(request, "account", "status")
    if key := raw(request, "conversation"):
        said["conversation"] = key
    status, cursor = status_in(said), request.query_params.get("cursor") or None
    async with hub.autocommit() as tx:
        wanted = Chosen(await meant(tx, said.get("account")), key or None, status)
        found = await messages.every(tx, wanted, PAGE, cursor)
        names = await roster.names(tx, {each.account_id for each in found.items})
    return page(
        request,
        "relay/messages.html",
        session=session,
        rows=found.items,
        names=names,
        sought=said,
        statuses=ALL,
        older=found.cursor,
        later=cursor,
    )


async def one(hub: Hub, request: Request, session: Session) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        whole = await messages.show(tx, row)
        told = await story(tx, Named(row, row, "message"))
        names = await roster.names(tx, [whole.message.account_id])
    return page(
        request,
        "relay/message.html",
        session=session,
        message=whole.message,
        payload=whole.payload,
        reply=whole.reply,
        account=names.get(whole.message.account_id, ""),
        lines=timeline(texts_for(request), told),
    )


async def failed(hub: Hub, request: Request, session: Session) -> Response:
    """Callbacks that Kakao refused or said nothing to, the newest first."""
    before = place_of(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        rows = await failures(tx, before=before, limit=PAGE)
        names = await roster.names(tx, {each.account_id for each in rows})
    return page(
        request,
        "relay/failures.html",
        session=session,
        rows=rows,
        names=names,
        older=cursor_of(rows, PAGE, "settled_at"),
        later=before,
    )


def status_in(said: dict[str, str]) -> Status | None:
    status = said.get("status")
    if status is not None and status not in ALL:
        raise Invalid.one("status", f"is none of {', '.join(ALL)}")
    return status


PAGES = (
    Look(f"{ROOM}/messages", every),
    Look(f"{ROOM}/messages/{{id:uuid}}", one),
    Look(f"{ROOM}/failures", failed),
)
