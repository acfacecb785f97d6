"""The API reference, generated from the route table: `/openapi.json`, the page `/docs`, and `docs/api.md`."""

from collections.abc import Iterable
from typing import Any

import jinja2
import msgspec
from starlette.responses import HTMLResponse, Response

from pabal.web.errors import error_status
from pabal.web.openapi import build_openapi
from pabal.web.route import Route

API_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("pabal.web"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
)

MARKDOWN_INTRO = """\
# The API

Every endpoint of the hub, generated from the route table. A running hub serves the same reference as OpenAPI 3.1 at
`/openapi.json` and as a page at `/docs`.

Errors are [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problems (`application/problem+json`) with a stable
`code`. Validation errors have status 400 and name each invalid field in `mistakes`. Every response carries an
`X-Request-Id`; use it to find the request in the log. A body has at most 1 MB in a list of events or notifications
(`PABAL_BODY_LIMIT`), 256 KB elsewhere, 64 KB in a form; a larger one is refused with 413. JSON of your own is nested at
most 64 levels deep and has at most 50,000 lists and objects. A query string has at most 8,192 bytes. While the database
is unavailable, any endpoint may return 503 with `Retry-After`.
"""


def reference_routes(routes: tuple[Route, ...]) -> tuple[Route, ...]:
    """The routes that serve the reference of these routes."""
    document = msgspec.json.encode(build_openapi(routes))
    page = API_TEMPLATES.get_template("docs.html").render(groups=group_by_tag(routes), format_statuses=format_statuses)

    async def openapi_document() -> Response:
        """Get this API as an OpenAPI 3.1 document."""
        return Response(document, media_type="application/json")

    async def docs() -> HTMLResponse:
        """Show this API as a web page."""
        return HTMLResponse(page)

    return (
        Route("GET", "/openapi.json", openapi_document, response=dict[str, Any], tag="about"),
        Route("GET", "/docs", docs, media_type="text/html", tag="about"),
    )


def api_markdown(routes: Iterable[Route]) -> str:
    lines = [MARKDOWN_INTRO]
    for tag, tagged in group_by_tag(routes).items():
        lines += [f"## {tag.capitalize()}", "", "| endpoint | statuses | |", "|---|---|---|"]
        lines += [
            f"| `{route.method} {route.path}` | {format_statuses(route)} | {first_paragraph(route.description)} |"
            for route in tagged
        ]
        lines.append("")
    return "\n".join(lines)


def group_by_tag(routes: Iterable[Route]) -> dict[str, list[Route]]:
    groups: dict[str, list[Route]] = {}
    for route in routes:
        groups.setdefault(route.tag, []).append(route)
    return groups


def format_statuses(route: Route) -> str:
    """Every status that the route may return, success first."""
    return ", ".join(str(status) for status in route_statuses(route))


def route_statuses(route: Route) -> list[int]:
    return [
        int(status)
        for status in dict.fromkeys([route.status, *route.other_statuses, *map(error_status, route.error_types)])
    ]


def first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())
