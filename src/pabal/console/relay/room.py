"""The relay's room: accounts, and one of them with everybody and everything it has."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.page import cursor_of, place_of
from pabal.console.gate import Look
from pabal.console.pages import chosen, page
from pabal.operators.operators import Session
from pabal.relay import accounts, conversations, messages, roster
from pabal.relay.messages import Chosen
from pabal.wiring import Hub

ROOM = "/console/relay"
PAGE = 50
FEW = 10
"""Of an account's users and messages; the rest is in their own lists."""


async def every(hub: Hub, request: Request, session: Session) -> Response:
    """Accounts, the newest first, with what each has now."""
    said = chosen(request, "name")
    before = place_of(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        rows = await roster.newest(tx, name=said.get("name"), before=before, limit=PAGE)
    return page(
        request,
        "relay/accounts.html",
        session=session,
        rows=rows,
        sought=said,
        most=roster.MOST,
        rate_limit=accounts.RATE_LIMIT,
        older=cursor_of(rows, PAGE),
        later=before,
    )


async def one(hub: Hub, request: Request, session: Session) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        account, has = await accounts.find(tx, row), await roster.one(tx, row)
        codes = await roster.waiting(tx, row)
        people = await conversations.every(tx, account=row, limit=FEW)
        recent = await messages.every(tx, Chosen(row), FEW)
    return page(
        request,
        "relay/account.html",
        session=session,
        account=account,
        has=has,
        most=roster.MOST_ALONE,
        codes=codes,
        people=people,
        recent=recent.items,
        prefix=hub.settings.command_prefix,
    )


def of_account(account: UUID) -> str:
    return f"{ROOM}/accounts/{account}"


PAGES = (Look(ROOM, every), Look(f"{ROOM}/accounts/{{id:uuid}}", one))
