"""The addresses that refuse us, and saying that one works again."""

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.gate import Deed, Form, Look, by
from pabal.console.notices.log import ROOM
from pabal.console.pages import page, then
from pabal.core.errors import NotFound
from pabal.notifications import refusals
from pabal.notifications.addresses import heal
from pabal.notifications.plan import Channel
from pabal.operators.operators import Session
from pabal.wiring import Hub

HERE = ROOM + "/addresses"
MOST = 100


async def every(hub: Hub, request: Request, session: Session) -> Response:
    async with hub.autocommit() as tx:
        rows = await refusals.newest(tx, MOST)
    return page(request, "notifications/addresses.html", session=session, rows=rows)


async def healed(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    channel = given.get("channel", "")
    if channel not in {*Channel}:
        raise NotFound("there is no such channel")
    async with hub.transaction() as tx:
        await heal(tx, Channel(channel), given.get("recipient", ""), by(request, session))
    return then(HERE, "healed")


PAGES = (
    Look(HERE, every),
    Deed(HERE + "/heal", healed),
)
