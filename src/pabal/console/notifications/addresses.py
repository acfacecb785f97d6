"""Blocked addresses, and marking one as working."""

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.notifications.notifications import NOTIFICATIONS_PATH
from pabal.console.pages import redirect_with_flash, render_page
from pabal.core.errors import NotFound
from pabal.hub import Hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.dispatch.addresses import list_unhealthy_addresses, unblock_address
from pabal.operators.operators import OperatorSession

ADDRESSES_PATH = NOTIFICATIONS_PATH + "/addresses"
MAX_ADDRESSES = 100


async def unhealthy_addresses_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    async with hub.autocommit() as tx:
        rows = await list_unhealthy_addresses(tx, MAX_ADDRESSES)
    return render_page(request, "notifications/addresses.html", session=session, rows=rows)


async def unblock_address_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    channel = fields.get("channel", "")
    if channel not in {*NotificationChannel}:
        raise NotFound(f"No such channel: {channel[:64]}")
    async with hub.transaction() as tx:
        await unblock_address(
            tx, NotificationChannel(channel), fields.get("recipient", ""), operator_actor(request, session)
        )
    return redirect_with_flash(ADDRESSES_PATH, "notifications.address.marked_working")


PAGES = (
    Page(ADDRESSES_PATH, unhealthy_addresses_page),
    Action(ADDRESSES_PATH + "/heal", unblock_address_action),
)
