"""Kakao's doors: the chat page and what it asks for, and the callbacks."""

import re
from collections.abc import AsyncGenerator

import jinja2
import msgspec
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pabal.api.bind import read_body
from pabal.api.sse import EventStreamResponse
from pabal.api.threshold import SECURITY_HEADERS
from pabal.core.errors import BodyTooLarge
from pabal.demo.chat import ChatReader
from pabal.demo.kakao import FakeKakao
from pabal.demo.texts import page_texts

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("pabal.demo"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
)
CALLBACK_PATH = "/callback"
USER_PATTERN = re.compile(r"[A-Za-z0-9_-]{8,64}")
MAX_BODY_BYTES = 1_048_576


class ChatMessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a page sends when somebody presses Enter."""

    text: str
    language: str = "ko"


def demo_chat_app(kakao: FakeKakao, hub: str, *, has_bot: bool) -> ASGIApp:
    """Build what Kakao serves. `hub` is shown to people; `has_bot` says whether ours is in the play."""

    async def show(request: Request) -> Response:
        html = TEMPLATES.get_template("chat.html").render(t=page_texts(request), hub=hub, has_bot=has_bot)
        return HTMLResponse(html, headers={"cache-control": "no-store"})

    async def write(request: Request) -> Response:
        if request.headers.get("content-type") != "application/json":  # which a page from elsewhere may not send
            raise HTTPException(415)
        try:
            written = msgspec.json.decode(await read_body(request, MAX_BODY_BYTES), type=ChatMessageBody)
        except msgspec.MsgspecError as error:
            raise HTTPException(400, str(error)) from None
        await kakao.send_message(chat_user(request), written.text, written.language)
        return Response(status_code=204)

    async def read(request: Request) -> Response:
        user, last = chat_user(request), request.headers.get("last-event-id", "")
        reader = kakao.open_reader(user, int(last) if last.isdecimal() else 0)
        return EventStreamResponse(read_chat_events(kakao, user, reader), reader.close)

    async def callback(request: Request) -> Response:
        verdict = kakao.receive_callback(request.path_params["token"], await read_body(request, MAX_BODY_BYTES))
        return JSONResponse(verdict.body, verdict.status)

    return Starlette(
        routes=[
            Route("/", show),
            Route("/chats/{user}", read, methods=["GET"]),
            Route("/chats/{user}", write, methods=["POST"]),
            Route(CALLBACK_PATH + "/{token}", callback, methods=["POST"]),
            Mount("/static", StaticFiles(packages=[("pabal.demo", "static")])),
        ],
        middleware=[Middleware(DemoHeadersMiddleware)],
        exception_handlers={BodyTooLarge: too_large_response},
    )


async def too_large_response(_request: Request, error: Exception) -> Response:
    return Response(str(error), 413)


class DemoHeadersMiddleware:
    """Every answer wears the console's security headers: nothing but our own script and style runs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def dress(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        await self._app(scope, receive, dress)


def chat_user(request: Request) -> str:
    user = request.path_params["user"]
    if not USER_PATTERN.fullmatch(user):
        raise HTTPException(404)
    return user


async def read_chat_events(kakao: FakeKakao, user: str, reader: ChatReader) -> AsyncGenerator[bytes]:
    try:
        async for event in reader.events():
            yield event
    finally:
        kakao.close_reader(user, reader)
