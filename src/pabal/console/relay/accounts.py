"""What an operator does to accounts: make them, switch them off and on, give them tokens and codes, forget them."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.gate import Action, Form, operator_actor
from pabal.console.once import secret_page
from pabal.console.pages import confirm_page, is_confirmed, is_count_confirmed, redirect_with_flash
from pabal.console.relay.room import RELAY_PATH, account_url
from pabal.core.errors import Invalid
from pabal.operators.operators import OperatorSession
from pabal.relay import accounts, codes, roster
from pabal.wiring import Hub


async def create_account_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Make an account; its relay token stands on the answer, and nowhere after."""
    rate_limit = parse_rate_limit(fields.get("rate_limit", ""), accounts.DEFAULT_RATE_LIMIT)
    async with hub.transaction() as tx:
        account, token = await accounts.create_account(
            tx, fields.get("name", "").strip(), operator_actor(request, session), rate_limit=rate_limit
        )
    return secret_page(request, session, "new relay token", token, account_url(account.id))


async def disable_account_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Switch an account off: what waits for it is cancelled."""
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        ends = await roster.measure_deletion_impact(tx, row)
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="sure disable",
                count=ends.open_messages,
                fields={},
                return_url=account_url(row),
                name=(await accounts.find_account(tx, row)).openclaw_user_id,
            )
        await accounts.disable_account(tx, row, operator_actor(request, session))
    return redirect_with_flash(account_url(row), "done disable")


async def enable_account_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await accounts.enable_account(tx, row, operator_actor(request, session))
    return redirect_with_flash(account_url(row), "done enable")


async def rotate_relay_token_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Give an account another relay token. The one before dies, with unused codes and, if asked for, the sessions."""
    row: UUID = request.path_params["id"]
    sessions = "sessions" in fields
    async with hub.transaction() as tx:
        ends = await roster.measure_deletion_impact(tx, row)
        count = ends.codes + ends.sessions if sessions else ends.codes
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="sure rotate with sessions" if sessions else "sure rotate",
                count=count,
                fields=fields,
                return_url=account_url(row),
                name=(await accounts.find_account(tx, row)).openclaw_user_id,
            )
        token = await accounts.rotate_relay_token(tx, row, operator_actor(request, session), revoke_sessions=sessions)
    return secret_page(request, session, "new relay token", token, account_url(row))


async def delete_account_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Forget an account, with as many messages and conversations as were agreed to."""
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        ends = await roster.measure_deletion_impact(tx, row)
        if not is_count_confirmed(fields, ends.messages) or fields.get("conversations") != str(ends.conversations):
            return confirm_page(
                request,
                session,
                text_id="sure delete",
                count=ends.messages,
                fields={"conversations": str(ends.conversations)},
                return_url=account_url(row),
                conversations=ends.conversations,
                name=(await accounts.find_account(tx, row)).openclaw_user_id,
            )
        await accounts.delete_account(tx, row, operator_actor(request, session))
    return redirect_with_flash(RELAY_PATH, "done delete", messages=ends.messages, conversations=ends.conversations)


async def create_pairing_code_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    """Make a pairing code: it is shown in the account's page while it lives."""
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await codes.create_pairing_code(tx, row, operator_actor(request, session))
    hub.relay.metrics.pairing_codes_created.add(1)
    return redirect_with_flash(account_url(row), "done code")


def parse_rate_limit(text: str, default: int) -> int:
    if not text.strip():
        return default
    if not text.isascii() or not text.strip().isdecimal() or len(text) > len(str(accounts.MAX_RATE_LIMIT)) + 1:
        raise Invalid.of_field("rate_limit", f"is a whole number from 1 to {accounts.MAX_RATE_LIMIT}")
    return int(text)


PAGES = (
    Action(f"{RELAY_PATH}/accounts", create_account_action),
    *(
        Action(f"{RELAY_PATH}/accounts/{{id:uuid}}/{name}", do)
        for name, do in (
            ("disable", disable_account_action),
            ("enable", enable_account_action),
            ("rotate", rotate_relay_token_action),
            ("delete", delete_account_action),
            ("code", create_pairing_code_action),
        )
    ),
)
