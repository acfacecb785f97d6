"""The audit log: who did what, and whether somebody tampered with it."""

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from pabal.audit.log import AuditFilter, scan_audit_log
from pabal.audit.record import record_action
from pabal.audit.verify import RecentVerification, verify_recent_seals
from pabal.console.guards import Action, Form, Page, operator_actor
from pabal.console.pages import read_filters, render_page
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession

AUDIT_PATH = "/console/audit"
PAGE_SIZE = 50
MAX_BREAKS = 100
TIME_RANGES = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}


async def audit_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_audit_page(hub, request, session)


async def verify_audit_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    """Hold the newest of the log against its seals; that somebody did, and how many breaks they saw, is noted."""
    async with hub.autocommit() as tx:
        looked = await verify_recent_seals(tx, hub.key_ring)
        rows, broken = looked.report.rows, looked.report.broken
        await record_action(tx, operator_actor(request, session), "audit.verified", None, rows=rows, broken=broken)
    return await render_audit_page(hub, request, session, looked)


async def render_audit_page(
    hub: Hub, request: Request, session: OperatorSession, verification: RecentVerification | None = None
) -> Response:
    """The log, the newest first; what it is narrowed to is in the address."""
    sought = read_filters(request, "actor", "action", "subject", "since")
    since = TIME_RANGES.get(sought.get("since", ""))
    wanted = AuditFilter(sought.get("actor"), sought.get("action"), sought.get("subject"), since)
    cursor = request.query_params.get("cursor") or None
    async with hub.autocommit() as tx:
        found = await scan_audit_log(tx, wanted, PAGE_SIZE, cursor)
    return render_page(
        request,
        "audit.html",
        session=session,
        rows=found.items,
        filters=sought,
        time_ranges=tuple(TIME_RANGES),
        next_cursor=found.cursor,
        current_cursor=cursor,
        truncated=found.truncated,
        verification=verification,
        breaks=verification.report.breaks[:MAX_BREAKS] if verification else (),
    )


PAGES = (Page(AUDIT_PATH, audit_page), Action(f"{AUDIT_PATH}/verify", verify_audit_action))
