"""The table of doors as a document: OpenAPI for programs, a page for people, `docs/api.md` for the repository."""

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

Every door of the hub, written from the table the router reads. The same as OpenAPI 3.1: `/openapi.json`; as a page:
`/docs`.

Errors are [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problems (`application/problem+json`) with a stable
`code`; validation errors are 400 and name the field in `mistakes`. Every answer carries `X-Request-Id`, which finds
the request in the log. When the database is away, any door may answer 503 with `Retry-After`.
"""


def reference_routes(routes: tuple[Route, ...]) -> tuple[Route, ...]:
    """The doors that tell about the others."""
    document = msgspec.json.encode(build_openapi(routes))
    page = API_TEMPLATES.get_template("docs.html").render(groups=group_by_tag(routes), told=format_statuses)

    async def openapi_document() -> Response:
        """This API as OpenAPI 3.1."""
        return Response(document, media_type="application/json")

    async def docs() -> HTMLResponse:
        """This API as a page."""
        return HTMLResponse(page)

    return (
        Route("GET", "/openapi.json", openapi_document, response=dict[str, Any], tag="about"),
        Route("GET", "/docs", docs, media_type="text/html", tag="about"),
    )


def api_markdown(routes: Iterable[Route]) -> str:
    lines = [MARKDOWN_INTRO]
    for tag, doors in group_by_tag(routes).items():
        lines += [f"## {tag.capitalize()}", "", "| door | answers | |", "|---|---|---|"]
        lines += [
            f"| `{door.method} {door.path}` | {format_statuses(door)} | {first_paragraph(door.description)} |"
            for door in doors
        ]
        lines.append("")
    return "\n".join(lines)


def group_by_tag(routes: Iterable[Route]) -> dict[str, list[Route]]:
    groups: dict[str, list[Route]] = {}
    for door in routes:
        groups.setdefault(door.tag, []).append(door)
    return groups


def format_statuses(route: Route) -> str:
    """Every status a door may answer with, the good ones first."""
    return ", ".join(str(status) for status in route_statuses(route))


def route_statuses(route: Route) -> list[int]:
    return [
        int(each)
        for each in dict.fromkeys([route.status, *route.other_statuses, *map(error_status, route.error_types)])
    ]


def first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())
