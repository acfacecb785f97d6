"""What an operator does to accounts: make them, switch them off and on, give them tokens and codes, forget them."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.gate import Deed, Form, by
from pabal.console.once import once
from pabal.console.pages import agreed, confirm, confirmed, then
from pabal.console.relay.room import ROOM, of_account
from pabal.core.errors import Invalid
from pabal.operators.operators import Session
from pabal.relay import accounts, codes, roster
from pabal.wiring import Hub


async def create(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Make an account; its relay token stands on the answer, and nowhere after."""
    rate_limit = number(given.get("rate_limit", ""), accounts.RATE_LIMIT)
    async with hub.transaction() as tx:
        account, token = await accounts.create(
            tx, given.get("name", "").strip(), by(request, session), rate_limit=rate_limit
        )
    return once(request, session, "new relay token", token, of_account(account.id))


async def disable(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Switch an account off: what waits for it is cancelled."""
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        ends = await roster.toll(tx, row)
        if not agreed(given):
            return confirm(
                request,
                session,
                says="sure disable",
                count=ends.open_messages,
                carries={},
                back=of_account(row),
                name=(await accounts.find(tx, row)).openclaw_user_id,
            )
        await accounts.disable(tx, row, by(request, session))
    return then(of_account(row), "done disable")


async def enable(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await accounts.enable(tx, row, by(request, session))
    return then(of_account(row), "done enable")


async def rotate(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Give an account another relay token. The one before dies, with unused codes and, if asked for, the sessions."""
    row: UUID = request.path_params["id"]
    sessions = "sessions" in given
    async with hub.transaction() as tx:
        ends = await roster.toll(tx, row)
        count = ends.codes + ends.sessions if sessions else ends.codes
        if not agreed(given):
            return confirm(
                request,
                session,
                says="sure rotate with sessions" if sessions else "sure rotate",
                count=count,
                carries=given,
                back=of_account(row),
                name=(await accounts.find(tx, row)).openclaw_user_id,
            )
        token = await accounts.rotate_token(tx, row, by(request, session), sessions=sessions)
    return once(request, session, "new relay token", token, of_account(row))


async def delete(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Forget an account, with as many messages and conversations as were agreed to."""
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        ends = await roster.toll(tx, row)
        if not confirmed(given, ends.messages) or given.get("conversations") != str(ends.conversations):
            return confirm(
                request,
                session,
                says="sure delete",
                count=ends.messages,
                carries={"conversations": str(ends.conversations)},
                back=of_account(row),
                conversations=ends.conversations,
                name=(await accounts.find(tx, row)).openclaw_user_id,
            )
        await accounts.delete(tx, row, by(request, session))
    return then(ROOM, "done delete", messages=ends.messages, conversations=ends.conversations)


async def code(hub: Hub, request: Request, session: Session, _given: Form) -> Response:
    """Make a pairing code: it is shown in the account's page while it lives."""
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await codes.generate(tx, row, by(request, session))
    hub.relay.figures.created.add(1)
    return then(of_account(row), "done code")


def number(written: str, otherwise: int) -> int:
    if not written.strip():
        return otherwise
    if not written.isascii() or not written.strip().isdecimal() or len(written) > len(str(accounts.MOST_RATE)) + 1:
        raise Invalid.one("rate_limit", f"is a whole number from 1 to {accounts.MOST_RATE}")
    return int(written)


PAGES = (
    Deed(f"{ROOM}/accounts", create),
    *(
        Deed(f"{ROOM}/accounts/{{id:uuid}}/{name}", do)
        for name, do in (
            ("disable", disable),
            ("enable", enable),
            ("rotate", rotate),
            ("delete", delete),
            ("code", code),
        )
    ),
)
