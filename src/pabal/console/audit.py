"""The audit log and the verification of its seals."""

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from pabal.audit.log import AuditFilter, scan_audit_log
from pabal.audit.record import record_action
from pabal.audit.verify import RecentVerification, verify_recent_seals
from pabal.console.guards import Action, Form, Page, operator_actor
from pabal.console.pages import read_cursor, read_filters, render_page
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession

AUDIT_PATH = "/console/audit"
PAGE_SIZE = 50
MAX_BREAKS = 100
TIME_RANGES = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}


async def audit_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_audit_page(hub, request, session)


async def verify_audit_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    """Verify the newest seals. The verification itself is recorded, with the number of mismatches."""
    async with hub.autocommit() as tx:
        verification = await verify_recent_seals(tx, hub.key_ring)
        rows, broken = verification.report.rows, verification.report.broken
        await record_action(tx, operator_actor(request, session), "audit.verified", None, rows=rows, broken=broken)
    return await render_audit_page(hub, request, session, verification)


async def render_audit_page(
    hub: Hub, request: Request, session: OperatorSession, verification: RecentVerification | None = None
) -> Response:
    """List the entries that match the filters, newest first."""
    filters = read_filters(request, "actor", "action", "subject", "since")
    since = TIME_RANGES.get(filters.get("since", ""))
    audit_filter = AuditFilter(filters.get("actor"), filters.get("action"), filters.get("subject"), since)
    cursor = read_cursor(request)
    async with hub.autocommit() as tx:
        page = await scan_audit_log(tx, audit_filter, PAGE_SIZE, cursor)
    return render_page(
        request,
        "audit.html",
        session=session,
        rows=page.items,
        filters=filters,
        time_ranges=tuple(TIME_RANGES),
        next_cursor=page.cursor,
        current_cursor=cursor,
        truncated=page.truncated,
        verification=verification,
        breaks=verification.report.breaks[:MAX_BREAKS] if verification else (),
    )


PAGES = (Page(AUDIT_PATH, audit_page), Action(f"{AUDIT_PATH}/verify", verify_audit_action))
