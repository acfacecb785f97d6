"""Relay accounts: create, disable, enable and delete them, rotate their tokens, create pairing codes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.pages import (
    confirm_page,
    is_confirmed,
    is_count_confirmed,
    read_cursor,
    read_filters,
    redirect_with_flash,
    render_page,
    secret_page,
)
from pabal.core.errors import Invalid
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession, Role
from pabal.relay import accounts
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
    rename_account,
    rotate_relay_token,
    set_account_answer_mode,
)
from pabal.relay.conversations import list_conversations
from pabal.relay.encryption.message_cipher import MessageCipher
from pabal.relay.encryption.text_views import record_text_views
from pabal.relay.messages import InboundMessage, MessageFilter, list_messages
from pabal.relay.pairing.codes import create_pairing_code
from pabal.settings import Settings
from pabal.web.pagination import decode_cursor, next_cursor
from pabal.web.webhook_path import WEBHOOK_PATH

RELAY_PATH = "/console/relay"
PAGE_SIZE = 50
PREVIEW_SIZE = 10
"""Users and messages on the page of an account; their own lists have the rest."""


async def accounts_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """List the accounts with their current counts, newest first."""
    filters = read_filters(request, "name")
    before = decode_cursor(read_cursor(request))
    async with hub.autocommit() as tx:
        rows = await list_account_summaries(tx, name=filters.get("name"), before=before, limit=PAGE_SIZE)
    return render_page(
        request,
        "relay/accounts.html",
        session=session,
        rows=rows,
        filters=filters,
        max_counted=accounts.MAX_COUNT_IN_LIST,
        rate_limit=hub.settings.account_rate_limit,
        next_cursor=next_cursor(rows, PAGE_SIZE),
        current_cursor=before,
        skill=skill_setup(hub.settings, reveal=session.role == Role.ADMIN),
    )


@dataclass(frozen=True, slots=True)
class SkillSetup:
    """What to enter in Kakao's skill settings. `secret` is empty for operators who may not see it."""

    url: str
    header: str
    secret: str = field(repr=False)
    has_secret: bool
    is_open: bool

    @property
    def is_closed(self) -> bool:
        """Whether the webhook refuses every request."""
        return not (self.has_secret or self.is_open)


def skill_setup(settings: Settings, *, reveal: bool) -> SkillSetup:
    secret = settings.webhook_secret
    return SkillSetup(
        url=f"{settings.issuer}{WEBHOOK_PATH}",
        header=settings.webhook_header,
        secret=secret.get_secret_value() if secret and reveal else "",
        has_secret=bool(secret),
        is_open=settings.webhook_open,
    )


def text_cipher(hub: Hub, session: OperatorSession) -> MessageCipher | None:
    """What decrypts texts for this operator; None for one who may not read them."""
    return hub.relay.cipher if session.role == Role.ADMIN else None


async def record_shown_texts(
    tx: Tx, request: Request, session: OperatorSession, messages: Sequence[InboundMessage]
) -> None:
    """Record that this operator is shown decrypted texts. Costs no statement if none of them is encrypted."""
    keys = {message.conversation_key for message in messages if message.is_encrypted and message.text is not None}
    await record_text_views(tx, operator_actor(request, session), keys)


async def account_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    account_id: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        account, summary = await find_account(tx, account_id), await find_account_summary(tx, account_id)
        pairing_codes = await list_live_pairing_codes(tx, account_id)
        conversations = await list_conversations(tx, account=account_id, limit=PREVIEW_SIZE)
        recent = await list_messages(tx, MessageFilter(account_id), PREVIEW_SIZE, cipher=text_cipher(hub, session))
        await record_shown_texts(tx, request, session, recent.items)
    return render_page(
        request,
        "relay/account.html",
        session=session,
        account=account,
        answer_modes=accounts.ANSWER_MODES,
        counts=summary,
        max_counted=accounts.MAX_COUNT_FOR_ONE,
        pairing_codes=pairing_codes,
        conversations=conversations,
        recent_messages=recent.items,
        command_prefix=hub.settings.command_prefix,
    )


def account_url(account_id: UUID) -> str:
    return f"{RELAY_PATH}/accounts/{account_id}"


RELAY_PAGES = (Page(RELAY_PATH, accounts_page), Page(f"{RELAY_PATH}/accounts/{{id:uuid}}", account_page))


async def create_account_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Create an account and show its relay token once."""
    rate_limit = parse_rate_limit(fields.get("rate_limit", ""), hub.settings.account_rate_limit)
    async with hub.transaction() as tx:
        account, token = await create_account(
            tx, fields.get("name", "").strip(), operator_actor(request, session), rate_limit=rate_limit
        )
    return secret_page(request, session, "relay.account.new_token", token, account_url(account.id))


async def disable_account_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Disable an account and cancel its open messages."""
    account_id: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        impact = await measure_deletion_impact(tx, account_id)
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="relay.account.confirm_disable",
                count=impact.open_messages,
                fields={},
                return_url=account_url(account_id),
                name=(await find_account(tx, account_id)).openclaw_user_id,
            )
        await disable_account(tx, account_id, operator_actor(request, session))
    return redirect_with_flash(account_url(account_id), "relay.done.disable")


async def rename_account_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Change the name that users see in `/status`."""
    account_id: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await rename_account(tx, account_id, fields.get("name", "").strip(), operator_actor(request, session))
    return redirect_with_flash(account_url(account_id), "relay.done.rename")


async def set_answer_mode_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Change how an account's users get answers."""
    account_id: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await set_account_answer_mode(tx, account_id, read_answer_mode(fields), operator_actor(request, session))
    return redirect_with_flash(account_url(account_id), "relay.done.answer_mode")


def read_answer_mode(fields: Form) -> accounts.AnswerMode:
    answer_mode = fields.get("answer_mode", "")
    if answer_mode not in accounts.ANSWER_MODES:
        raise Invalid.of_field("answer_mode", f"must be one of {', '.join(accounts.ANSWER_MODES)}")
    return answer_mode


async def enable_account_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    account_id: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await enable_account(tx, account_id, operator_actor(request, session))
    return redirect_with_flash(account_url(account_id), "relay.done.enable")


async def rotate_relay_token_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Replace the relay token. The old one stops working, as do unused codes and, on request, the sessions."""
    account_id: UUID = request.path_params["id"]
    with_sessions = "sessions" in fields
    async with hub.transaction() as tx:
        impact = await measure_deletion_impact(tx, account_id)
        count = impact.codes + impact.sessions if with_sessions else impact.codes
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="relay.account.confirm_rotate_with_sessions"
                if with_sessions
                else "relay.account.confirm_rotate",
                count=count,
                fields=fields,
                return_url=account_url(account_id),
                name=(await find_account(tx, account_id)).openclaw_user_id,
            )
        token = await rotate_relay_token(
            tx, account_id, operator_actor(request, session), revoke_sessions=with_sessions
        )
    return secret_page(request, session, "relay.account.new_token", token, account_url(account_id))


async def delete_account_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Delete an account, after confirmation of the number of messages and conversations."""
    account_id: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        impact = await measure_deletion_impact(tx, account_id)
        confirmed_conversations = fields.get("conversations") == str(impact.conversations)
        if not is_count_confirmed(fields, impact.messages) or not confirmed_conversations:
            return confirm_page(
                request,
                session,
                text_id="relay.account.confirm_delete",
                count=impact.messages,
                fields={"conversations": str(impact.conversations)},
                return_url=account_url(account_id),
                conversations=impact.conversations,
                name=(await find_account(tx, account_id)).openclaw_user_id,
            )
        await delete_account(tx, account_id, operator_actor(request, session))
    return redirect_with_flash(
        RELAY_PATH, "relay.done.delete", count=impact.messages, conversations=impact.conversations
    )


async def create_pairing_code_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    """Create a pairing code. The account's page shows it until it expires."""
    account_id: UUID = request.path_params["id"]
    async with hub.transaction() as tx:
        await create_pairing_code(tx, account_id, operator_actor(request, session))
    hub.relay.metrics.pairing_codes_created.add(1)
    return redirect_with_flash(account_url(account_id), "relay.done.code")


def parse_rate_limit(text: str, default: int) -> int:
    if not text.strip():
        return default
    if not text.isascii() or not text.strip().isdecimal() or len(text) > len(str(accounts.MAX_RATE_LIMIT)) + 1:
        raise Invalid.of_field("rate_limit", f"must be a whole number from 1 to {accounts.MAX_RATE_LIMIT}")
    return int(text)


PAGES = (
    Action(f"{RELAY_PATH}/accounts", create_account_action),
    *(
        Action(f"{RELAY_PATH}/accounts/{{id:uuid}}/{name}", handler)
        for name, handler in (
            ("disable", disable_account_action),
            ("enable", enable_account_action),
            ("rename", rename_account_action),
            ("answer-mode", set_answer_mode_action),
            ("rotate", rotate_relay_token_action),
            ("delete", delete_account_action),
            ("code", create_pairing_code_action),
        )
    ),
)
