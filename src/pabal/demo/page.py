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

from pabal.console.i18n import Language, translator_for
from pabal.core.errors import BodyTooLarge
from pabal.demo.kakao import ChatReader, FakeKakao
from pabal.web.endpoint import read_body
from pabal.web.middleware import SECURITY_HEADERS
from pabal.web.sse import EventStreamResponse

PAGE_TEXTS: dict[str, tuple[str, str]] = {
    "title": ("파발 데모 채널", "Pabal demo channel"),
    "plays": ("카카오톡을 흉내 낸 화면", "A page that plays KakaoTalk"),
    "open": ("이어져 있어요", "Connected"),
    "away": ("데모가 꺼졌어요. 다시 켜면 이어집니다.", "The demo has stopped. This page comes back when it does."),
    "console": ("콘솔", "Console"),
    "chat": ("대화", "Chat"),
    "hello": (
        "쓰는 말은 카카오가 하듯 허브의 웹훅으로 가고, 답은 콜백으로 돌아옵니다.",
        "What you write goes to the hub's webhook as Kakao would send it; answers come back through the callback.",
    ),
    "tabs": ("탭 하나가 한 사람이에요. 새 탭을 열면 다른 사람이 됩니다.", "Each tab is a person of its own."),
    "pair": ("봇이 기다려요. 이 코드를 보내 연결하세요.", "A bot is waiting. Send this code to connect to it:"),
    "own bot": (
        "플러그인의 릴레이 주소를 아래로 바꾸고, 플러그인이 보여 주는 코드를 「/pair 코드」로 보내세요.",
        "Point your plugin's relay URL here, then send the code it shows as “/pair CODE”:",
    ),
    "quick": ("바로 보내기", "Quick replies"),
    "write": ("메시지 쓰기", "Write a message"),
    "send": ("보내기", "Send"),
    "waits": ("답을 기다려요", "Waiting for the answer"),
    "lapsed": ("60초 안에 답이 오지 않아 콜백이 끝났어요.", "No answer within 60 seconds: the callback has ended."),
    "silent": ("스킬 서버가 5초 안에 답하지 않았어요.", "The skill server did not answer within 5 seconds."),
    "refused": ("스킬 서버가 거절했어요: 상태 ", "The skill server refused with status "),
    "picture": ("그림 보기", "Open the picture"),
    "call": ("전화: ", "Call "),
    "not kakao": (
        "카카오의 공식 서비스가 아닙니다. 아무것도 카카오로 가지 않습니다.",
        "Not an official Kakao service. Nothing here goes to Kakao.",
    ),
}


class PageTexts:
    """The page's words in one language: `t("send")`."""

    def __init__(self, language: Language) -> None:
        self.language: Language = language
        self._column = 0 if language == "ko" else 1

    def __call__(self, key: str) -> str:
        return PAGE_TEXTS[key][self._column]


def page_texts(request: Request) -> PageTexts:
    return PageTexts(translator_for(request).language)


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
