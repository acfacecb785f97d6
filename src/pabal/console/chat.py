"""The page of a chat user, opened with /code: their conversation, its messages, and what they can do with it."""

from dataclasses import dataclass
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from pabal.console.access.cookie_guard import CookieGuard
from pabal.console.access.csrf import csrf_token_for
from pabal.console.access.guards import Form
from pabal.console.pages import (
    is_count_confirmed,
    json_download,
    read_cursor,
    read_form,
    read_query,
    redirect_with_flash,
    request_context,
)
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
from pabal.web.cookies import read_cookie
from pabal.web.origin import is_same_origin

CHAT_PATH = "/chat"
CHAT_COOKIE = "pabal_chat"
PAGE_SIZE = 30
EXPORTS_PER_CONVERSATION = RateLimit("exports of a conversation", 10, timedelta(minutes=10))


@dataclass(frozen=True, slots=True)
class ChatVisitor:
    """A browser that opened the page of this conversation with its code."""

    session: ChatPageSession
    csrf_token: str

    @property
    def conversation_key(self) -> str:
        return self.session.conversation_key


async def authenticate_chat_visitor(hub: Hub, request: Request) -> ChatVisitor:
    cookie = read_cookie(request, CHAT_COOKIE)
    async with hub.autocommit() as tx:
        return ChatVisitor(await find_chat_page_session(tx, cookie), csrf_token_for(cookie))


def chat_closed_page(request: Request) -> Response:
    return CHAT_GUARD.error_page(request, "chat_closed", 401)


CHAT_GUARD = CookieGuard(
    CHAT_PATH, CHAT_COOKIE, authenticate_chat_visitor, chat_closed_page, refresh_interval=timedelta(seconds=3)
)


async def chat_page(hub: Hub, request: Request) -> Response:
    """Show the page. A code asks for a click first, because link previews fetch it as well."""
    if (code := read_query(request, "code")) is not None:
        return CHAT_GUARD.render_page(
            request,
            "open_link.html",
            layout="cookie_guard/base.html",
            title_id="people.title.chat",
            field_name="code",
            secret=code,
        )
    return await render_chat_page(hub, request, await authenticate_chat_visitor(hub, request))


async def open_chat_action(hub: Hub, request: Request) -> Response:
    """Exchange a one-time code for a cookie. Forms of other sites could open a stranger's conversation here."""
    fields = await read_form(request)
    if not is_same_origin(request, hub):
        return CHAT_GUARD.error_page(request, "form_expired", 403)
    async with hub.transaction() as tx:
        session = await open_chat_page(tx, fields.get("code", ""))
    if session is None:
        await authenticate_chat_visitor(hub, request)  # the code was used before, perhaps by this browser
        return RedirectResponse(CHAT_PATH, 303)
    return CHAT_GUARD.sign_in_redirect(hub, session.cookie, session.expires_in)


async def render_chat_page(hub: Hub, request: Request, visitor: ChatVisitor) -> Response:
    cursor = read_cursor(request)
    try:
        parse_message_cursor(cursor)
    except Invalid:
        cursor = None
    async with hub.autocommit() as tx:
        conversation = await find_conversation_details(tx, visitor.conversation_key)
        page = await list_messages(
            tx, MessageFilter(conversation_key=visitor.conversation_key), PAGE_SIZE, cursor, hub.relay.cipher
        )
        replies = await find_reply_summaries(tx, [message.id for message in page.items], cipher=hub.relay.cipher)
    return CHAT_GUARD.render_page(
        request,
        "chat/page.html",
        csrf_token=visitor.csrf_token,
        conversation=conversation,
        closes_in=visitor.session.expires_in,
        rows=page.items[::-1],
        replies=replies,
        next_cursor=page.cursor,
        current_cursor=cursor,
        command_prefix=hub.settings.command_prefix,
    )


async def chat_export_page(hub: Hub, request: Request, visitor: ChatVisitor) -> Response:
    """Download everything the hub stores about the conversation."""
    async with hub.autocommit() as tx:
        await consume_rate_limit(tx, EXPORTS_PER_CONVERSATION, visitor.conversation_key)
    async with hub.transaction() as tx:
        return json_download(
            await export_conversation(tx, visitor.conversation_key, chat_actor(request), hub.relay.cipher),
            "conversation.json",
        )


async def unpair_chat_action(hub: Hub, request: Request, visitor: ChatVisitor, fields: Form) -> Response:
    """Disconnect from the bot and cancel the messages that wait for an answer, after confirmation of their number."""
    async with hub.transaction() as tx:
        await lock_conversation(tx, visitor.conversation_key)
        open_messages = (await find_conversation_details(tx, visitor.conversation_key)).open_messages
        if not is_count_confirmed(fields, open_messages):
            return CHAT_GUARD.confirm_page(
                request, visitor, text_id="chat.confirm.unpair", count=open_messages, fields={}
            )
        await unpair_conversation(tx, visitor.conversation_key, chat_actor(request))
    return redirect_with_flash(CHAT_PATH, "chat.unpaired")


async def erase_chat_action(hub: Hub, request: Request, visitor: ChatVisitor, fields: Form) -> Response:
    """Erase the conversation and close this page, after confirmation of the number of messages."""
    async with hub.transaction() as tx:
        await lock_conversation(tx, visitor.conversation_key)
        stored = await count_conversation_data(tx, visitor.conversation_key)
        if not is_count_confirmed(fields, stored.messages):
            return CHAT_GUARD.confirm_page(
                request, visitor, text_id="chat.confirm.erase", count=stored.messages, fields={}
            )
        erased = await erase_conversation(tx, visitor.conversation_key, chat_actor(request))
    return CHAT_GUARD.delete_cookie(
        CHAT_GUARD.render_page(request, "chat/erased.html", messages=erased.messages, rows=erased.total)
    )


async def close_chat_action(hub: Hub, request: Request, _visitor: ChatVisitor, _fields: Form) -> Response:
    async with hub.autocommit() as tx:
        await close_chat_page(tx, read_cookie(request, CHAT_COOKIE))
    return CHAT_GUARD.delete_cookie(RedirectResponse(CHAT_PATH, 303))


def chat_actor(request: Request) -> Actor:
    """Return the user as an actor of the audit log, without anything that identifies them after an erasure."""
    return Actor(CHAT_ACTOR.name, request_id=request_context(request).id)


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
