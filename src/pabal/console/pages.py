"""Rendering of pages: templates, forms, confirmations, flash messages and redirects."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import jinja2
import msgspec
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pabal import __version__
from pabal.console.access.csrf import CSRF_FIELD, csrf_input
from pabal.console.format import (
    code_element,
    date_element,
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
from pabal.core.errors import Invalid
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.web.auth import set_secure_cookie
from pabal.web.cookies import read_cookie
from pabal.web.endpoint import MAX_FORM_BYTES, MAX_NAME_LENGTH, read_body
from pabal.web.request import RequestContext, parse_query_pairs

JINJA_ENV = jinja2.Environment(
    loader=jinja2.PackageLoader("pabal.console"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,  # an upgrade on disk must not change the pages of a running hub
)
MAX_PAGE_FORM_FIELDS = 500
"""Fields of a form: a page lists up to 100 dead letters, each with a checkbox."""
MAX_FILTER_LENGTH = 1100
"""Characters of a filter; the longest is a conversation key."""
MAX_FIELD_LENGTH = 8000
"""Characters of one field of a form or a query string."""
REFRESH_HEADER = "x-refresh"
"""Marks requests that an open page makes to refresh itself."""
FLASH_COOKIE = "pabal_flash"
"""Carries the result of an action to the page that is shown next."""
FlashNumber = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]
FlashPayload = tuple[str, dict[str, FlashNumber]]
"""A text id and numbers. The cookie comes from the browser, so it cannot carry text of its own."""
YEAR_SECONDS = 31_536_000


def build_url(path: str, /, **params: str | None) -> str:
    """Append the parameters that have a value."""
    return f"{path}?{query}" if (query := urlencode({k: v for k, v in params.items() if v})) else path


TEMPLATE_FILTERS: dict[str, Any] = {
    "count": format_count,
    "age": format_age,
    "code": code_element,
    "date": date_element,
    "time": time_element,
    "redacted_json": redacted_json,
    "short_id": short_id,
    "display_name": display_name,
    "user_agent": format_user_agent,
    "redact_user_key": redact_user_key,
    "reply_texts": reply_texts,
}
TEMPLATE_GLOBALS: dict[str, Any] = {"build_url": build_url, "csrf_input": csrf_input}
JINJA_ENV.filters.update(TEMPLATE_FILTERS)
JINJA_ENV.globals.update(TEMPLATE_GLOBALS)


def request_context(request: Request) -> RequestContext:
    return request.state.context


def render_page(request: Request, template_name: str, *, status: int = 200, **context: object) -> HTMLResponse:
    """Render a template in the visitor's language. A flash message is shown once, and not to a background refresh."""
    t = translator_for(request)
    flash = "" if REFRESH_HEADER in request.headers else read_flash(request, t)
    html = JINJA_ENV.get_template(template_name).render(
        t=t, path=request.url.path, version=__version__, flash=flash, **context
    )
    response = HTMLResponse(html, status, {"cache-control": "no-store"})
    if flash:
        response.delete_cookie(FLASH_COOKIE, path=first_path_segment(request.url.path))
    return response


def error_page(request: Request, error: str, status: int, detail: str = "") -> HTMLResponse:
    """Render a page with one of the `common.error` texts."""
    return render_page(request, "error.html", status=status, error=error, detail=detail)


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
    """Ask before an action: what happens, and to how many rows.

    The form posts `fields` and `count` to the same path again, so that the action can check that the number it was
    confirmed for still holds. `values` fill the other placeholders of the text.
    """
    context = confirm_context(request, session.csrf.hex(), text_id, count, fields, **values)
    return render_page(request, "confirm.html", layout="base.html", session=session, return_url=return_url, **context)


def confirm_context(
    request: Request, csrf_token: str, text_id: str, count: int, fields: Mapping[str, Any], **values: int | str
) -> dict[str, Any]:
    """Build the template context of a confirmation."""
    return {
        "csrf_token": csrf_token,
        "question": translator_for(request)(text_id, count=count, **values),
        "count": count,
        "fields": [(name, value) for name, value in form_pairs(fields) if name not in {CSRF_FIELD, "count"}],
    }


def form_pairs(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    return fields.multi_items() if isinstance(fields, ImmutableMultiDict) else list(fields.items())


def is_count_confirmed(fields: Mapping[str, str], count: int) -> bool:
    """Return whether the number that was confirmed is still the current one."""
    return fields.get("count") == str(count)


def is_confirmed(fields: Mapping[str, str]) -> bool:
    """Return whether any number was confirmed.

    For actions that lock someone out: they must not be able to prevent it by changing the number in the meantime.
    """
    return fields.get("count", "").isdecimal()


class FlashRedirect(RedirectResponse):
    """A redirect after an action, with a flash message. The guard of the route sets its cookie."""

    def __init__(self, url: str, text_id: str, numbers: dict[str, int]) -> None:
        super().__init__(url, 303)
        self.url, self.text_id, self.numbers = url, text_id, numbers


def redirect_with_flash(url: str, text_id: str = "", **numbers: int) -> Response:
    """Redirect to a page that shows the result of an action once."""
    return FlashRedirect(url, text_id, numbers)


def set_flash_cookie(hub: Hub, response: Response) -> Response:
    if isinstance(response, FlashRedirect) and response.text_id:
        payload = quote(msgspec.json.encode([response.text_id, response.numbers]))
        set_secure_cookie(hub, response, FLASH_COOKIE, payload, max_age=30, path=first_path_segment(response.url))
    return response


def first_path_segment(url: str) -> str:
    """Return the path that a cookie for this page is limited to: `/console`, `/portal` or `/chat`."""
    return f"/{urlsplit(url).path.split('/')[1]}"


def read_flash(request: Request, t: Translator) -> str:
    """Return the flash message of the cookie, or nothing if the cookie is malformed."""
    try:
        text_id, numbers = msgspec.json.decode(unquote(read_cookie(request, FLASH_COOKIE)), type=FlashPayload)
        return t(text_id, **numbers)
    except (msgspec.DecodeError, LookupError, ValueError):
        return ""


def language_redirect(hub: Hub, request: Request, base_path: str) -> Response:
    """Switch the pages under `base_path` to the other language."""
    response = RedirectResponse(base_path, 303)
    language = translator_for(request).other_language
    set_secure_cookie(hub, response, LANGUAGE_COOKIE, language, max_age=YEAR_SECONDS, path=base_path)
    return response


async def read_form(request: Request) -> ImmutableMultiDict[str, str]:
    """Parse a small urlencoded form. NUL characters are dropped because PostgreSQL rejects them."""
    body = await read_body(request, MAX_FORM_BYTES)
    text = body.decode("utf-8", "replace")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PAGE_FORM_FIELDS)
    except ValueError:
        raise Invalid.of_field("form", f"has more than {MAX_PAGE_FORM_FIELDS} fields") from None
    return ImmutableMultiDict([(name, check_field(name, value)) for name, value in pairs])


def check_field(name: str, value: str) -> str:
    """Return the value without NUL characters. Raise Invalid if it is longer than any field of ours."""
    if len(value) > MAX_FIELD_LENGTH:
        raise Invalid.of_field(name[:MAX_NAME_LENGTH], f"is longer than {MAX_FIELD_LENGTH} characters")
    return value.replace("\0", "")


def read_query(request: Request, name: str, max_length: int = MAX_FILTER_LENGTH) -> str | None:
    """Return a query parameter, the last one if it is given more than once. None without it."""
    values = [value for parameter, value in parse_query_pairs(request) if parameter == name]
    if not values:
        return None
    if len(values[-1]) > max_length:
        raise Invalid.of_field(name, f"is longer than {max_length} characters")
    return values[-1].replace("\0", "")


def read_filters(request: Request, *names: str) -> dict[str, str]:
    """Return the query parameters with these names that have a value."""
    values = {name: (read_query(request, name) or "").strip() for name in names}
    return {name: value for name, value in values.items() if value}


def read_cursor(request: Request) -> str | None:
    """Return the cursor of the page to show, or None for the first page."""
    return read_query(request, "cursor", MAX_FIELD_LENGTH) or None


def secret_page(request: Request, session: OperatorSession, title_id: str, secret: str, return_url: str) -> Response:
    """Show a secret that cannot be read again later."""
    return render_page(request, "secret.html", session=session, title_id=title_id, secret=secret, return_url=return_url)


def json_download(document: dict[str, Any], filename: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{filename}"', "cache-control": "no-store"}
    return Response(msgspec.json.format(msgspec.json.encode(document)), media_type="application/json", headers=headers)
