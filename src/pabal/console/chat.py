"""A user's own page, where /code leads: one conversation, what was said in it, and what may be done with it."""

from dataclasses import dataclass
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from pabal.api.person import from_here
from pabal.api.visit import Visit
from pabal.console.download import download
from pabal.console.gate import Form
from pabal.console.pages import confirmed, form, then
from pabal.console.wicket import Wicket, stamp_of
from pabal.core.actor import Actor
from pabal.core.errors import Invalid
from pabal.limits import Limit, take
from pabal.relay import conversations, messages
from pabal.relay.answers import answers
from pabal.relay.erase import erase, holdings
from pabal.relay.export import export
from pabal.relay.messages import Chosen
from pabal.relay.page import Reader, close_page, open_page, reader_of, standing
from pabal.relay.pair import CHAT
from pabal.wiring import Hub

HOME = "/chat"
COOKIE = "pabal_chat"
PAGE = 30
EXPORTS = Limit("exports of a conversation", 10, timedelta(minutes=10))


@dataclass(frozen=True, slots=True)
class Guest:
    """Whoever opened the page of this conversation with its code."""

    reader: Reader
    stamp: str

    @property
    def key(self) -> str:
        return self.reader.conversation_key


async def known(hub: Hub, request: Request) -> Guest:
    cookie = request.cookies.get(COOKIE, "")
    async with hub.autocommit() as tx:
        return Guest(await reader_of(tx, cookie), stamp_of(cookie))


def turned_away(request: Request) -> Response:
    return WICKET.note(request, "page closed", 401)


WICKET = Wicket(HOME, COOKIE, known, turned_away, every=timedelta(seconds=3))


async def come(hub: Hub, request: Request) -> Response:
    """The page; whoever comes with a code is asked before it is used, as anything may fetch a link."""
    if (code := request.query_params.get("code")) is not None:
        return WICKET.page(
            request, "open.html", dress="wicket/base.html", title="wicket chat", name="code", secret=code
        )
    return await show(hub, request, await known(hub, request))


async def enter(hub: Hub, request: Request) -> Response:
    """Take a code, once, and give a cookie for it. Only to a form of ours: nobody opens theirs in another's browser."""
    given = await form(request)
    if not from_here(request, hub):
        return WICKET.note(request, "stale form", 403)
    async with hub.transaction() as tx:
        opened = await open_page(tx, given.get("code", ""))
    if opened is None:
        await known(hub, request)  # used before, by this browser as it seems
        return RedirectResponse(HOME, 303)
    return WICKET.welcome(hub, opened.cookie, opened.left)


async def show(hub: Hub, request: Request, guest: Guest) -> Response:
    cursor = request.query_params.get("cursor")
    try:
        messages.place(cursor)
    except Invalid:
        cursor = None
    async with hub.autocommit() as tx:
        now = await standing(tx, guest.key)
        found = await messages.every(tx, Chosen(conversation=guest.key), PAGE, cursor)
        answered = await answers(tx, [each.id for each in found.items])
    return WICKET.page(
        request,
        "chat/page.html",
        stamp=guest.stamp,
        now=now,
        left=guest.reader.left,
        rows=found.items[::-1],
        answered=answered,
        older=found.cursor,
        later=cursor,
        prefix=hub.settings.command_prefix,
    )


async def take_along(hub: Hub, request: Request, guest: Guest) -> Response:
    """Everything the hub has of the conversation, as a file."""
    async with hub.autocommit() as tx:
        await take(tx, EXPORTS, guest.key)
    async with hub.transaction() as tx:
        return download(await export(tx, guest.key, somebody(request)), "conversation.json")


async def unpair(hub: Hub, request: Request, guest: Guest, given: Form) -> Response:
    """Disconnect from the bot; as many messages are cancelled as were agreed to."""
    async with hub.transaction() as tx:
        await conversations.held(tx, guest.key)
        ends = (await standing(tx, guest.key)).open_messages
        if not confirmed(given, ends):
            return WICKET.sure(request, guest, says="sure leave bot", count=ends, carries={})
        await conversations.unpair(tx, guest.key, somebody(request))
    return then(HOME, "done leave bot")


async def forget(hub: Hub, request: Request, guest: Guest, given: Form) -> Response:
    """Erase everything of the conversation, with as many messages as were agreed to. The page goes with it."""
    async with hub.transaction() as tx:
        await conversations.held(tx, guest.key)
        there = await holdings(tx, guest.key)
        if not confirmed(given, there.messages):
            return WICKET.sure(request, guest, says="sure erase", count=there.messages, carries={})
        gone = await erase(tx, guest.key, somebody(request))
    return WICKET.farewell(WICKET.page(request, "chat/gone.html", messages=gone.messages, rows=gone.rows))


async def leave(hub: Hub, request: Request, _guest: Guest, _given: Form) -> Response:
    async with hub.autocommit() as tx:
        await close_page(tx, request.cookies.get(COOKIE, ""))
    return WICKET.farewell(RedirectResponse(HOME, 303))


def somebody(request: Request) -> Actor:
    """The user, as the audit log names them: by nothing that would be left of them when they are erased."""
    visit: Visit = request.state.visit
    return Actor(CHAT.name, request_id=visit.id)


def routes(hub: Hub) -> list[BaseRoute]:
    return [
        Route(HOME, WICKET.opened(hub, come), methods=["GET"]),
        Route(HOME, WICKET.opened(hub, enter), methods=["POST"]),
        Route(f"{HOME}/live", WICKET.look(hub, WICKET.live), methods=["GET"]),
        Route(f"{HOME}/export", WICKET.look(hub, take_along), methods=["GET"]),
        Route(f"{HOME}/unpair", WICKET.deed(hub, unpair), methods=["POST"]),
        Route(f"{HOME}/erase", WICKET.deed(hub, forget), methods=["POST"]),
        Route(f"{HOME}/leave", WICKET.deed(hub, leave), methods=["POST"]),
        Route(f"{HOME}/language", WICKET.opened(hub, WICKET.language), methods=["POST"]),
        Route(f"{HOME}/{{rest:path}}", WICKET.missing),
    ]
