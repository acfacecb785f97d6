"""The relay's room: accounts, and one of them with everybody and everything it has."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.page import decode_cursor, next_cursor
from pabal.console.gate import Page
from pabal.console.pages import read_filters, render_page
from pabal.operators.operators import OperatorSession
from pabal.relay import accounts, conversations, messages, roster
from pabal.relay.messages import MessageFilter
from pabal.wiring import Hub

RELAY_PATH = "/console/relay"
PAGE_SIZE = 50
PREVIEW_SIZE = 10
"""Of an account's users and messages; the rest is in their own lists."""


async def accounts_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """Accounts, the newest first, with what each has now."""
    said = read_filters(request, "name")
    before = decode_cursor(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        rows = await roster.list_account_summaries(tx, name=said.get("name"), before=before, limit=PAGE_SIZE)
    return render_page(
        request,
        "relay/accounts.html",
        session=session,
        rows=rows,
        filters=said,
        max_counted=roster.MAX_COUNT_IN_LIST,
        rate_limit=accounts.DEFAULT_RATE_LIMIT,
        next_cursor=next_cursor(rows, PAGE_SIZE),
        current_cursor=before,
    )


async def account_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        account, has = await accounts.find_account(tx, row), await roster.find_account_summary(tx, row)
        codes = await roster.list_live_pairing_codes(tx, row)
        people = await conversations.list_conversations(tx, account=row, limit=PREVIEW_SIZE)
        recent = await messages.list_messages(tx, MessageFilter(row), PREVIEW_SIZE)
    return render_page(
        request,
        "relay/account.html",
        session=session,
        account=account,
        counts=has,
        max_counted=roster.MAX_COUNT_FOR_ONE,
        pairing_codes=codes,
        conversations=people,
        recent_messages=recent.items,
        command_prefix=hub.settings.command_prefix,
    )


def account_url(account_id: UUID) -> str:
    return f"{RELAY_PATH}/accounts/{account_id}"


PAGES = (Page(RELAY_PATH, accounts_page), Page(f"{RELAY_PATH}/accounts/{{id:uuid}}", account_page))
