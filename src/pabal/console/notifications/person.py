"""One recipient: their preferences, and the link between their Discord account and a registered user."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.notifications.notifications import NOTIFICATIONS_PATH
from pabal.console.pages import build_url, read_query, redirect_with_flash, render_page
from pabal.core.errors import Invalid, NotFound
from pabal.hub import Hub
from pabal.notifications.people.links import list_service_links, unlink_account
from pabal.notifications.people.preferences import (
    PREFERENCE_FLAGS,
    check_reason,
    link_discord_account,
    load_preferences,
    parse_preferences_owner,
)
from pabal.notifications.recipient_forms import STORED_RECIPIENT_PATTERN
from pabal.operators.operators import OperatorSession

RECIPIENT_PATH = NOTIFICATIONS_PATH + "/person"


async def recipient_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    recipient = check_recipient_id(read_query(request, "recipient") or "")
    async with hub.autocommit() as tx:
        preferences = await load_preferences(tx, parse_preferences_owner(recipient))
        service_links = await list_service_links(tx, preferences.discord_id or recipient)
    return render_page(
        request,
        "notifications/person.html",
        session=session,
        recipient=recipient,
        preferences=preferences,
        flags=PREFERENCE_FLAGS,
        service_links=service_links,
    )


async def link_recipient_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    recipient, reason = check_recipient_id(fields.get("recipient", "")), check_reason(fields.get("reason", ""))
    try:
        user_id = UUID(fields.get("user_id", "").strip())
    except ValueError:
        raise Invalid.of_field("user_id", "must be the UUID of a registered user") from None
    async with hub.transaction() as tx:
        await link_discord_account(tx, recipient, user_id, operator_actor(request, session), reason=reason)
    return redirect_with_flash(build_url(RECIPIENT_PATH, recipient=recipient), "notifications.link.done")


async def unlink_recipient_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    recipient, reason = check_recipient_id(fields.get("recipient", "")), check_reason(fields.get("reason", ""))
    async with hub.transaction() as tx:
        await unlink_account(tx, recipient, operator_actor(request, session), reason=reason)
    return redirect_with_flash(build_url(RECIPIENT_PATH, recipient=recipient), "notifications.link.undone")


def check_recipient_id(recipient: str) -> str:
    if not STORED_RECIPIENT_PATTERN.fullmatch(recipient):
        raise NotFound("No such person")
    return recipient


PAGES = (
    Page(RECIPIENT_PATH, recipient_page),
    Action(RECIPIENT_PATH + "/link", link_recipient_action),
    Action(RECIPIENT_PATH + "/unlink", unlink_recipient_action),
)
