"""A dashboard of the simulated shop: a page of another origin that shows a customer's toasts."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from pabal.console.i18n import translator_for
from pabal.demo.page import TEMPLATES
from pabal.web.middleware import SECURITY_HEADERS

DASHBOARD_TEXTS = {
    "ko": {
        "title": "파발 가게",
        "orders": "내 주문",
        "hello": "이 페이지는 허브와 출처(origin)가 달라요. 종 모양 아이콘이 {name} 님의 알림을 보여 줘요.",
        "soon": "새 알림은 몇 초마다 도착해요.",
        "code": "이 페이지에 필요한 코드",
    },
    "en": {
        "title": "Pabal shop",
        "orders": "My orders",
        "hello": "This page has another origin than the hub. The bell shows the notifications of {name}.",
        "soon": "A new one arrives every few seconds.",
        "code": "All the code this page needs",
    },
}
CONTENT_POLICY = (
    "default-src 'none'; script-src {hub}; connect-src 'self' {hub}; style-src 'self'; img-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


def dashboard_routes(hub_url: str, person_name: str, issue_token: Callable[[], Awaitable[str]]) -> list[BaseRoute]:
    """The page and its endpoint for tokens, where a real shop would check who is signed in."""

    async def show_dashboard(request: Request) -> Response:
        language = translator_for(request).language
        html = TEMPLATES.get_template("dashboard.html").render(
            texts=DASHBOARD_TEXTS[language], language=language, hub=hub_url, name=person_name
        )
        policy = {"content-security-policy": CONTENT_POLICY.format(hub=hub_url)}
        return HTMLResponse(html, headers=SECURITY_HEADERS | policy)

    async def post_dashboard_token(_request: Request) -> Response:
        return JSONResponse({"token": await issue_token()}, headers={"cache-control": "no-store"})

    return [
        Route("/", show_dashboard),
        Route("/token", post_dashboard_token, methods=["POST"]),
        Mount("/static", StaticFiles(packages=[("pabal.demo", "static")])),
    ]
