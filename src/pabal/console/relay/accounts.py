"""What an operator does to accounts: make them, switch them off and on, give them tokens and codes, forget them."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.guards import Action, Form, Page, operator_actor
from pabal.console.pages import (
    confirm_page,
    is_confirmed,
    is_count_confirmed,
    read_filters,
    redirect_with_flash,
    render_page,
    secret_page,
)
from pabal.core.errors import Invalid
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.relay import accounts
from pabal.relay import accounts as roster
from pabal.relay.accounts import (
    create_account,
    delete_account,
    disable_account,
    enable_account,
    find_account,
    find_account_summary,
    list_account_summaries,
    list_live_pairing_codes,
    measure_deletion_impact,
    rotate_relay_token,
)
from pabal.relay.conversations import list_conversations
from pabal.relay.messages import MessageFilter, list_messages
from pabal.relay.pairing.codes import create_pairing_code
from pabal.web.pagination import decode_cursor, next_cursor

RELAY_PATH = "/console/relay"
PAGE_SIZE = 50
PREVIEW_SIZE = 10
"""Of an account's users and messages; the rest is in their own lists."""


async def accounts_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """Accounts, the newest first, with what each has now."""
    said = read_filters(request, "name")
    before = decode_cursor(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        rows = await list_account_summaries(tx, name=said.get("name"), before=before, limit=PAGE_SIZE)
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
        account, has = await find_account(tx, row), await find_account_summary(tx, row)
        codes = await list_live_pairing_codes(tx, row)
        people = await list_conversations(tx, account=row, limit=PREVIEW_SIZE)
        recent = await list_messages(tx, MessageFilter(row), PREVIEW_SIZE)
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


RELAY_PAGES = (Page(RELAY_PATH, accounts_page), Page(f"{RELAY_PATH}/accounts/{{id:uuid}}", account_page))


async def create_account_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Make an account; its relay token stands on the answer, and nowhere after."""
    rate_limit = parse_rate_limit(fields.get("rate_limit", ""), accounts.DEFAULT_RATE_LIMIT)
    async with hub.transaction() as tx:
        account, token = await create_account(
            tx, fields.get("name", "").strip(), operator_actor(request, session), rate_limit=rate_limit
        )
    return secret_page(request, session, "new relay token", token, account_url(account.id))


async def disable_account_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Switch an account off: what waits for it is cancelled."""
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        ends = await measure_deletion_impact(tx, row)
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="sure disable",
                count=ends.open_messages,
                fields={},
                return_url=account_url(row),
                name=(await find_account(tx, row)).openclaw_user_id,
            )
        await disable_account(tx, row, operator_actor(request, session))
    return redirect_with_flash(account_url(row), "done disable")


async def enable_account_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await enable_account(tx, row, operator_actor(request, session))
    return redirect_with_flash(account_url(row), "done enable")


async def rotate_relay_token_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Give an account another relay token. The one before dies, with unused codes and, if asked for, the sessions."""
    row: UUID = request.path_params["id"]
    sessions = "sessions" in fields
    async with hub.transaction() as tx:
        ends = await measure_deletion_impact(tx, row)
        count = ends.codes + ends.sessions if sessions else ends.codes
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="sure rotate with sessions" if sessions else "sure rotate",
                count=count,
                fields=fields,
                return_url=account_url(row),
                name=(await find_account(tx, row)).openclaw_user_id,
            )
        token = await rotate_relay_token(tx, row, operator_actor(request, session), revoke_sessions=sessions)
    return secret_page(request, session, "new relay token", token, account_url(row))


async def delete_account_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Forget an account, with as many messages and conversations as were agreed to."""
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        ends = await measure_deletion_impact(tx, row)
        if not is_count_confirmed(fields, ends.messages) or fields.get("conversations") != str(ends.conversations):
            return confirm_page(
                request,
                session,
                text_id="sure delete",
                count=ends.messages,
                fields={"conversations": str(ends.conversations)},
                return_url=account_url(row),
                conversations=ends.conversations,
                name=(await find_account(tx, row)).openclaw_user_id,
            )
        await delete_account(tx, row, operator_actor(request, session))
    return redirect_with_flash(RELAY_PATH, "done delete", messages=ends.messages, conversations=ends.conversations)


async def create_pairing_code_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    """Make a pairing code: it is shown in the account's page while it lives."""
    row: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await create_pairing_code(tx, row, operator_actor(request, session))
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
