"""A user's own page, where /code leads: one conversation, what was said in it, and what may be done with it."""

from dataclasses import dataclass
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from pabal.console.cookie_guard import CookieGuard, csrf_token_for
from pabal.console.guards import Form
from pabal.console.pages import is_count_confirmed, json_download, read_form, redirect_with_flash
from pabal.core.actor import Actor
from pabal.core.errors import Invalid
from pabal.hub import Hub
from pabal.limits import RateLimit, consume_rate_limit
from pabal.relay.conversations import lock_conversation, unpair_conversation
from pabal.relay.messages import MessageFilter, find_reply_summaries, list_messages, parse_message_cursor
from pabal.relay.pairing.pair import CHAT_ACTOR
from pabal.relay.privacy import count_conversation_data, erase_conversation, export_conversation
from pabal.relay.web_sessions import (
    ChatPageSession,
    close_chat_page,
    find_chat_page_session,
    find_conversation_details,
    open_chat_page,
)
from pabal.web.auth import is_same_origin
from pabal.web.request import RequestContext

CHAT_PATH = "/chat"
CHAT_COOKIE = "pabal_chat"
PAGE_SIZE = 30
EXPORTS_PER_CONVERSATION = RateLimit("exports of a conversation", 10, timedelta(minutes=10))


@dataclass(frozen=True, slots=True)
class ChatVisitor:
    """Whoever opened the page of this conversation with its code."""

    session: ChatPageSession
    csrf_token: str

    @property
    def conversation_key(self) -> str:
        return self.session.conversation_key


async def authenticate_chat_visitor(hub: Hub, request: Request) -> ChatVisitor:
    cookie = request.cookies.get(CHAT_COOKIE, "")
    async with hub.autocommit() as tx:
        return ChatVisitor(await find_chat_page_session(tx, cookie), csrf_token_for(cookie))


def chat_closed_page(request: Request) -> Response:
    return CHAT_GUARD.error_page(request, "page closed", 401)


CHAT_GUARD = CookieGuard(
    CHAT_PATH, CHAT_COOKIE, authenticate_chat_visitor, chat_closed_page, refresh_interval=timedelta(seconds=3)
)


async def chat_page(hub: Hub, request: Request) -> Response:
    """The page; whoever comes with a code is asked before it is used, as anything may fetch a link."""
    if (code := request.query_params.get("code")) is not None:
        return CHAT_GUARD.render_page(
            request,
            "open_link.html",
            layout="cookie_guard/base.html",
            title_id="wicket chat",
            field_name="code",
            secret=code,
        )
    return await render_chat_page(hub, request, await authenticate_chat_visitor(hub, request))


async def open_chat_action(hub: Hub, request: Request) -> Response:
    """Take a code, once, and give a cookie for it. Only to a form of ours: nobody opens theirs in another's browser."""
    given = await read_form(request)
    if not is_same_origin(request, hub):
        return CHAT_GUARD.error_page(request, "stale form", 403)
    async with hub.transaction() as tx:
        opened = await open_chat_page(tx, given.get("code", ""))
    if opened is None:
        await authenticate_chat_visitor(hub, request)  # used before, by this browser as it seems
        return RedirectResponse(CHAT_PATH, 303)
    return CHAT_GUARD.sign_in_redirect(hub, opened.cookie, opened.expires_in)


async def render_chat_page(hub: Hub, request: Request, visitor: ChatVisitor) -> Response:
    cursor = request.query_params.get("cursor")
    try:
        parse_message_cursor(cursor)
    except Invalid:
        cursor = None
    async with hub.autocommit() as tx:
        now = await find_conversation_details(tx, visitor.conversation_key)
        found = await list_messages(tx, MessageFilter(conversation_key=visitor.conversation_key), PAGE_SIZE, cursor)
        answered = await find_reply_summaries(tx, [each.id for each in found.items])
    return CHAT_GUARD.render_page(
        request,
        "chat/page.html",
        csrf_token=visitor.csrf_token,
        conversation=now,
        closes_in=visitor.session.expires_in,
        rows=found.items[::-1],
        replies=answered,
        next_cursor=found.cursor,
        current_cursor=cursor,
        command_prefix=hub.settings.command_prefix,
    )


async def chat_export_page(hub: Hub, request: Request, visitor: ChatVisitor) -> Response:
    """Everything the hub has of the conversation, as a file."""
    async with hub.autocommit() as tx:
        await consume_rate_limit(tx, EXPORTS_PER_CONVERSATION, visitor.conversation_key)
    async with hub.transaction() as tx:
        return json_download(
            await export_conversation(tx, visitor.conversation_key, chat_actor(request)), "conversation.json"
        )


async def unpair_chat_action(hub: Hub, request: Request, visitor: ChatVisitor, fields: Form) -> Response:
    """Disconnect from the bot; as many messages are cancelled as were agreed to."""
    async with hub.transaction() as tx:
        await lock_conversation(tx, visitor.conversation_key)
        ends = (await find_conversation_details(tx, visitor.conversation_key)).open_messages
        if not is_count_confirmed(fields, ends):
            return CHAT_GUARD.confirm_page(request, visitor, text_id="sure leave bot", count=ends, fields={})
        await unpair_conversation(tx, visitor.conversation_key, chat_actor(request))
    return redirect_with_flash(CHAT_PATH, "done leave bot")


async def erase_chat_action(hub: Hub, request: Request, visitor: ChatVisitor, fields: Form) -> Response:
    """Erase everything of the conversation, with as many messages as were agreed to. The page goes with it."""
    async with hub.transaction() as tx:
        await lock_conversation(tx, visitor.conversation_key)
        there = await count_conversation_data(tx, visitor.conversation_key)
        if not is_count_confirmed(fields, there.messages):
            return CHAT_GUARD.confirm_page(request, visitor, text_id="sure erase", count=there.messages, fields={})
        gone = await erase_conversation(tx, visitor.conversation_key, chat_actor(request))
    return CHAT_GUARD.delete_cookie(
        CHAT_GUARD.render_page(request, "chat/erased.html", messages=gone.messages, rows=gone.total)
    )


async def close_chat_action(hub: Hub, request: Request, _visitor: ChatVisitor, _fields: Form) -> Response:
    async with hub.autocommit() as tx:
        await close_chat_page(tx, request.cookies.get(CHAT_COOKIE, ""))
    return CHAT_GUARD.delete_cookie(RedirectResponse(CHAT_PATH, 303))


def chat_actor(request: Request) -> Actor:
    """The user, as the audit log names them: by nothing that would be left of them when they are erased."""
    visit: RequestContext = request.state.visit
    return Actor(CHAT_ACTOR.name, request_id=visit.id)


def chat_routes(hub: Hub) -> list[BaseRoute]:
    return [
        Route(CHAT_PATH, CHAT_GUARD.public_handler(hub, chat_page), methods=["GET"]),
        Route(CHAT_PATH, CHAT_GUARD.public_handler(hub, open_chat_action), methods=["POST"]),
        Route(f"{CHAT_PATH}/live", CHAT_GUARD.page_handler(hub, CHAT_GUARD.live_page), methods=["GET"]),
        Route(f"{CHAT_PATH}/export", CHAT_GUARD.page_handler(hub, chat_export_page), methods=["GET"]),
        Route(f"{CHAT_PATH}/unpair", CHAT_GUARD.action_handler(hub, unpair_chat_action), methods=["POST"]),
        Route(f"{CHAT_PATH}/erase", CHAT_GUARD.action_handler(hub, erase_chat_action), methods=["POST"]),
        Route(f"{CHAT_PATH}/leave", CHAT_GUARD.action_handler(hub, close_chat_action), methods=["POST"]),
        Route(
            f"{CHAT_PATH}/language", CHAT_GUARD.public_handler(hub, CHAT_GUARD.switch_language_action), methods=["POST"]
        ),
        Route(f"{CHAT_PATH}/{{rest:path}}", CHAT_GUARD.not_found_page),
    ]
