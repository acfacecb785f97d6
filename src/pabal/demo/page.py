"""The endpoints of the fake Kakao: the chat page, its messages and stream, and the callbacks."""

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
    "plays": ("카카오톡을 흉내 낸 화면이에요", "A simulated KakaoTalk chat"),
    "open": ("연결됨", "Connected"),
    "away": (
        "데모가 멈췄어요. 다시 시작하면 자동으로 연결돼요.",
        "The demo has stopped. This page reconnects when it is back.",
    ),
    "console": ("콘솔", "Console"),
    "chat": ("대화", "Chat"),
    "hello": (
        "메시지는 카카오처럼 허브의 웹훅으로 전송되고, 답은 콜백으로 돌아와요.",
        "Your messages go to the hub's webhook as Kakao would send them. Replies arrive through the callback.",
    ),
    "tabs": ("탭마다 다른 사용자예요. 새 탭을 열면 새 사용자로 시작해요.", "Each tab is a separate user."),
    "pair": ("이 코드를 보내면 봇과 연결돼요.", "Send this code to connect to the bot:"),
    "own bot": (
        "플러그인의 릴레이 주소를 아래로 설정하고, 플러그인에 표시된 코드를 “/pair 코드”로 보내세요.",
        "Set your plugin's relay URL to this address, then send the code it shows as “/pair CODE”:",
    ),
    "quick": ("빠른 답장", "Quick replies"),
    "write": ("메시지 쓰기", "Write a message"),
    "send": ("보내기", "Send"),
    "waits": ("답을 기다리는 중", "Waiting for the reply"),
    "lapsed": ("60초 안에 답이 오지 않아 콜백이 만료됐어요.", "No reply within 60 seconds: the callback has expired."),
    "silent": ("스킬 서버가 5초 안에 응답하지 않았어요.", "The skill server did not respond within 5 seconds."),
    "refused": ("스킬 서버 오류: 상태 코드 ", "The skill server responded with status "),
    "picture": ("이미지 보기", "Open image"),
    "call": ("전화: ", "Call "),
    "not kakao": (
        "카카오의 공식 서비스가 아니며, 카카오로 전송되는 데이터는 없어요.",
        "Not an official Kakao service. No data is sent to Kakao.",
    ),
}


class PageTexts:
    """The page's texts in one language: `t("send")`."""

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
    """A message from the page."""

    text: str
    language: str = "ko"


def demo_chat_app(kakao: FakeKakao, hub: str, *, has_bot: bool) -> ASGIApp:
    """Build the app. `hub` is shown on the page; `has_bot` says whether the demo bot runs."""

    async def show_page(request: Request) -> Response:
        html = TEMPLATES.get_template("chat.html").render(t=page_texts(request), hub=hub, has_bot=has_bot)
        return HTMLResponse(html, headers={"cache-control": "no-store"})

    async def post_message(request: Request) -> Response:
        if request.headers.get("content-type") != "application/json":  # a page of another origin cannot send this type
            raise HTTPException(415)
        try:
            message = msgspec.json.decode(await read_body(request, MAX_BODY_BYTES), type=ChatMessageBody)
        except msgspec.MsgspecError as error:
            raise HTTPException(400, str(error)) from None
        await kakao.send_message(chat_user(request), message.text, message.language)
        return Response(status_code=204)

    async def stream_chat(request: Request) -> Response:
        user, last = chat_user(request), request.headers.get("last-event-id", "")
        reader = kakao.open_reader(user, int(last) if last.isdecimal() else 0)
        return EventStreamResponse(read_chat_events(kakao, user, reader), reader.close)

    async def callback(request: Request) -> Response:
        response = kakao.receive_callback(request.path_params["token"], await read_body(request, MAX_BODY_BYTES))
        return JSONResponse(response.body, response.status)

    return Starlette(
        routes=[
            Route("/", show_page),
            Route("/chats/{user}", stream_chat, methods=["GET"]),
            Route("/chats/{user}", post_message, methods=["POST"]),
            Route(CALLBACK_PATH + "/{token}", callback, methods=["POST"]),
            Mount("/static", StaticFiles(packages=[("pabal.demo", "static")])),
        ],
        middleware=[Middleware(DemoHeadersMiddleware)],
        exception_handlers={BodyTooLarge: too_large_response},
    )


async def too_large_response(_request: Request, error: Exception) -> Response:
    return Response(str(error), 413)


class DemoHeadersMiddleware:
    """Adds the console's security headers to every response: only our own script and style run."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


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
