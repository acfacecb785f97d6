"""How a page is made: one template, one language, nothing cached where it should not be."""

from urllib.parse import parse_qsl

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from pabal import __version__
from pabal.api.bind import read_body
from pabal.console import figures
from pabal.console.texts import texts_for

PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader("pabal.console"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
FORM_LIMIT = 16_384

PAGES.filters["count"] = figures.count
PAGES.filters["age"] = figures.age


def page(request: Request, template: str, *, status: int = 200, **what: object) -> HTMLResponse:
    t = texts_for(request)
    html = PAGES.get_template(template).render(t=t, path=request.url.path, version=__version__, **what)
    return HTMLResponse(html, status, {"cache-control": "no-store"})


async def fields(request: Request) -> dict[str, str]:
    """What a form of ours brings: small, urlencoded, the last of each name."""
    body = await read_body(request, FORM_LIMIT)
    text = body.decode("utf-8", "replace")
    return {name: value.replace("\0", "") for name, value in parse_qsl(text, keep_blank_values=True)}


def note(request: Request, says: str, status: int) -> HTMLResponse:
    """A page that only says something: not there, away for the moment."""
    return page(request, "note.html", status=status, says=says)
