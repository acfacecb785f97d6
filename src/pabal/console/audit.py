"""The audit log: who did what, and whether somebody tampered with it."""

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from pabal.audit.glance import glance
from pabal.audit.history import Wanted
from pabal.audit.recent import Looked, recent
from pabal.audit.record import did
from pabal.console.gate import Deed, Form, Look, by
from pabal.console.pages import chosen, page
from pabal.operators.operators import Session
from pabal.wiring import Hub

ROOM = "/console/audit"
PAGE = 50
BREAKS = 100
SPANS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}


async def log(hub: Hub, request: Request, session: Session) -> Response:
    return await shown(hub, request, session)


async def verify(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    """Hold the newest of the log against its seals; that somebody did, and how many breaks they saw, is noted."""
    async with hub.autocommit() as tx:
        looked = await recent(tx, hub.keys)
        rows, broken = looked.verdict.rows, looked.verdict.broken
        await did(tx, by(request, session), "audit.verified", None, rows=rows, broken=broken)
    return await shown(hub, request, session, looked)


async def shown(hub: Hub, request: Request, session: Session, looked: Looked | None = None) -> Response:
    """The log, the newest first; what it is narrowed to is in the address."""
    sought = chosen(request, "actor", "action", "subject", "since")
    since = SPANS.get(sought.get("since", ""))
    wanted = Wanted(sought.get("actor"), sought.get("action"), sought.get("subject"), since)
    cursor = request.query_params.get("cursor") or None
    async with hub.autocommit() as tx:
        found = await glance(tx, wanted, PAGE, cursor)
    return page(
        request,
        "audit.html",
        session=session,
        rows=found.items,
        sought=sought,
        spans=tuple(SPANS),
        older=found.cursor,
        later=cursor,
        cut=found.cut,
        looked=looked,
        breaks=looked.verdict.breaks[:BREAKS] if looked else (),
    )


PAGES = (Look(ROOM, log), Deed(f"{ROOM}/verify", verify))
