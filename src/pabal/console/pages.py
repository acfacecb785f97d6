"""How a page is made: one template, one language, nothing cached where it should not be."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import jinja2
import msgspec
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pabal import __version__
from pabal.console.format import (
    display_name,
    format_age,
    format_count,
    format_user_agent,
    redact_user_key,
    redacted_json,
    reply_texts,
    short_id,
    time_element,
)
from pabal.console.i18n import LANGUAGE_COOKIE, Translator, translator_for
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.web.auth import set_secure_cookie
from pabal.web.endpoint import read_body

JINJA_ENV = jinja2.Environment(
    loader=jinja2.PackageLoader("pabal.console"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,  # a hub that runs stays as it was started, whatever is installed meanwhile
)
MAX_FORM_BYTES = 65_536
FLASH_COOKIE = "pabal_said"
"""What a deed has to say, carried to the page that is shown after it."""
FlashNumber = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]
FlashPayload = tuple[str, dict[str, FlashNumber]]
"""A text of ours and the numbers in it: whatever a browser brings, no word of somebody else's is said here."""
YEAR_SECONDS = 31_536_000

TEMPLATE_FILTERS: dict[str, Any] = {
    "count": format_count,
    "age": format_age,
    "time": time_element,
    "redacted_json": redacted_json,
    "short_id": short_id,
    "display_name": display_name,
    "user_agent": format_user_agent,
    "redact_user_key": redact_user_key,
    "reply_texts": reply_texts,
}
JINJA_ENV.filters.update(TEMPLATE_FILTERS)


def render_page(request: Request, template_name: str, *, status: int = 200, **context: object) -> HTMLResponse:
    t = translator_for(request)
    said = "" if "x-look" in request.headers else read_flash(request, t)  # nobody reads the top of a page fetched again
    html = JINJA_ENV.get_template(template_name).render(
        t=t, path=request.url.path, version=__version__, flash=said, **context
    )
    answer = HTMLResponse(html, status, {"cache-control": "no-store"})
    if said:
        answer.delete_cookie(FLASH_COOKIE, path=first_path_segment(request.url.path))
    return answer


def error_page(request: Request, text_id: str, status: int, detail: str = "") -> HTMLResponse:
    """A page that only says something: not there, away for the moment."""
    return render_page(request, "error.html", status=status, text_id=text_id, detail=detail)


def confirm_page(
    request: Request,
    session: OperatorSession,
    *,
    text_id: str,
    count: int,
    fields: Mapping[str, Any],
    return_url: str,
    **values: int | str,
) -> Response:
    """Ask before something is done that cannot be undone: what, and to how many. The form comes back to its own path.

    `carries` is what the form brought; `count` goes with it, and the deed sees whether that many are still meant.
    Further `facts` are said by their names.
    """
    proof = ("csrf", session.csrf.hex())
    asked = confirm_context(request, proof, text_id, count, fields, **values)
    return render_page(request, "confirm.html", layout="base.html", session=session, return_url=return_url, **asked)


def confirm_context(
    request: Request,
    csrf_field: tuple[str, str],
    text_id: str,
    count: int,
    fields: Mapping[str, Any],
    **values: int | str,
) -> dict[str, Any]:
    """What a page that asks says and brings back; `proof` is what its forms show to be ours."""
    known = {name: format_count(fact) if isinstance(fact, int) else fact for name, fact in values.items()}
    return {
        "csrf_field": csrf_field,
        "question": translator_for(request)(text_id).format(format_count(count), **known),
        "count": count,
        "fields": [(name, value) for name, value in form_pairs(fields) if name not in {csrf_field[0], "count"}],
    }


def form_pairs(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    return fields.multi_items() if isinstance(fields, ImmutableMultiDict) else list(fields.items())


def is_count_confirmed(fields: Mapping[str, str], count: int) -> bool:
    """Whether the number that was agreed to is the number it is."""
    return fields.get("count") == str(count)


def is_confirmed(fields: Mapping[str, str]) -> bool:
    """Whether somebody was told a number and agreed, whatever it has become since.

    For deeds that protect: who is to be kept out must not be able to keep them from being done by moving the number.
    """
    return fields.get("count", "").isdecimal()


class FlashRedirect(RedirectResponse):
    """To a page after a deed, with something to say there, which the gate gives the browser to carry."""

    def __init__(self, url: str, text_id: str, numbers: dict[str, int]) -> None:
        super().__init__(url, 303)
        self.url, self.text_id, self.numbers = url, text_id, numbers


def redirect_with_flash(url: str, text_id: str = "", **numbers: int) -> Response:
    """Go to a page after a deed, and say there what came of it."""
    return FlashRedirect(url, text_id, numbers)


def set_flash_cookie(hub: Hub, response: Response) -> Response:
    if isinstance(response, FlashRedirect) and response.text_id:
        told = quote(msgspec.json.encode([response.text_id, response.numbers]))
        set_secure_cookie(hub, response, FLASH_COOKIE, told, max_age=30, path=first_path_segment(response.url))
    return response


def first_path_segment(url: str) -> str:
    """The beginning of an address that says whose pages these are: an operator's, an owner's, a user's."""
    return f"/{urlsplit(url).path.split('/')[1]}"


def read_flash(request: Request, t: Translator) -> str:
    """What the deed before has to say; a cookie that makes no sense says nothing."""
    try:
        key, numbers = msgspec.json.decode(unquote(request.cookies.get(FLASH_COOKIE, "")), type=FlashPayload)
        return t(key).format(**numbers)
    except (msgspec.DecodeError, LookupError, ValueError):
        return ""


def language_redirect(hub: Hub, request: Request, base_path: str) -> Response:
    """Turn the pages under `home` to the other language."""
    answer = RedirectResponse(base_path, 303)
    set_secure_cookie(
        hub, answer, LANGUAGE_COOKIE, translator_for(request).other_language, max_age=YEAR_SECONDS, path=base_path
    )
    return answer


async def read_form(request: Request) -> ImmutableMultiDict[str, str]:
    """What a form of ours brings: small, urlencoded."""
    body = await read_body(request, MAX_FORM_BYTES)
    text = body.decode("utf-8", "replace")
    return ImmutableMultiDict(
        [(name, value.replace("\0", "")) for name, value in parse_qsl(text, keep_blank_values=True)]
    )


def read_filters(request: Request, *names: str) -> dict[str, str]:
    """What a list is narrowed to by the address of the page: the names it knows, and only where something is said."""
    said = {name: request.query_params.get(name, "").replace("\0", "").strip() for name in names}
    return {name: value for name, value in said.items() if value}


def build_url(path: str, /, **params: str | None) -> str:
    """An address with what is said in it."""
    return f"{path}?{query}" if (query := urlencode({k: v for k, v in params.items() if v})) else path


TEMPLATE_GLOBALS: dict[str, Any] = {"build_url": build_url}
JINJA_ENV.globals.update(TEMPLATE_GLOBALS)


def secret_page(request: Request, session: OperatorSession, title_id: str, secret: str, return_url: str) -> Response:
    """Show what nobody can look up again. `title` is a text's key, `back` where to go when it is written down."""
    return render_page(request, "secret.html", session=session, title_id=title_id, secret=secret, return_url=return_url)


def json_download(document: dict[str, Any], filename: str) -> Response:
    named = {"content-disposition": f'attachment; filename="{filename}"', "cache-control": "no-store"}
    return Response(msgspec.json.format(msgspec.json.encode(document)), media_type="application/json", headers=named)
