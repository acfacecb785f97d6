"""The audit log and the verification of its seals."""

import asyncio
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from pabal.audit.chain_head import ChainHead
from pabal.audit.follow import follow_chain
from pabal.audit.log import AuditFilter, scan_audit_log
from pabal.audit.record import record_action
from pabal.audit.verify import RecentVerification, verify_recent_seals
from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.pages import read_cursor, read_filters, render_page
from pabal.core.errors import SetupError
from pabal.core.messages import Message
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession

AUDIT_PATH = "/console/audit"
PAGE_SIZE = 50
MAX_BREAKS = 100
MAX_FOLLOWED_SEALS = 100
"""How many seals after the known one a page view checks."""
TIME_RANGES = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}


async def audit_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_audit_page(hub, request, session)


async def verify_audit_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    """Verify the newest seals. The verification itself is recorded, with the number of mismatches."""
    known = await known_head(hub)
    async with hub.autocommit() as tx:
        verification = await verify_recent_seals(tx, hub.key_ring, expected_heads=[known] if known else [])
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
        chain_problem = await find_chain_problem(hub, tx)
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
        chain_problem=chain_problem,
        verification=verification,
        breaks=verification.report.breaks[:MAX_BREAKS] if verification else (),
    )


async def known_head(hub: Hub) -> ChainHead | None:
    """The head in this host's file; None if there is none or it cannot be read, which `find_chain_problem` reports."""
    try:
        return await asyncio.to_thread(hub.audit_sealer.head_file.read)
    except SetupError:
        return None


async def find_chain_problem(hub: Hub, tx: Tx) -> Message | None:
    """Why the log is not the one that this host knows; None if it is."""
    try:
        known = await asyncio.to_thread(hub.audit_sealer.head_file.read)
        return (await follow_chain(tx, hub.key_ring, known, MAX_FOLLOWED_SEALS)).finding
    except SetupError as error:
        return Message("{}", error)


PAGES = (Page(AUDIT_PATH, audit_page), Action(f"{AUDIT_PATH}/verify", verify_audit_action))
