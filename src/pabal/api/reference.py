"""The table of doors as a document: OpenAPI for programs, a page for people, `docs/api.md` for the repository."""

from collections.abc import Iterable
from typing import Any

import jinja2
import msgspec
from starlette.responses import HTMLResponse, Response

from pabal.api import openapi
from pabal.api.door import Door
from pabal.api.errors import status_of

PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader("pabal.api"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
)

PREFACE = """\
# The API

Every door of the hub, written from the table the router reads. The same as OpenAPI 3.1: `/openapi.json`; as a page:
`/docs`.

Errors are [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problems (`application/problem+json`) with a stable
`code`; validation errors are 400 and name the field in `mistakes`. Every answer carries `X-Request-Id`, which finds
the request in the log. When the database is away, any door may answer 503 with `Retry-After`.
"""


def doors_about(table: tuple[Door, ...]) -> tuple[Door, ...]:
    """The doors that tell about the others."""
    document = msgspec.json.encode(openapi.document(table))
    page = PAGES.get_template("docs.html").render(groups=grouped(table), told=told)

    async def openapi_document() -> Response:
        """This API as OpenAPI 3.1."""
        return Response(document, media_type="application/json")

    async def docs() -> HTMLResponse:
        """This API as a page."""
        return HTMLResponse(page)

    return (
        Door("GET", "/openapi.json", openapi_document, gives=dict[str, Any], tag="about"),
        Door("GET", "/docs", docs, media_type="text/html", tag="about"),
    )


def markdown(table: Iterable[Door]) -> str:
    lines = [PREFACE]
    for tag, doors in grouped(table).items():
        lines += [f"## {tag.capitalize()}", "", "| door | answers | |", "|---|---|---|"]
        lines += [f"| `{door.method} {door.path}` | {told(door)} | {one_line(door.says)} |" for door in doors]
        lines.append("")
    return "\n".join(lines)


def grouped(table: Iterable[Door]) -> dict[str, list[Door]]:
    groups: dict[str, list[Door]] = {}
    for door in table:
        groups.setdefault(door.tag, []).append(door)
    return groups


def told(door: Door) -> str:
    """Every status a door may answer with, the good ones first."""
    return ", ".join(str(status) for status in statuses(door))


def statuses(door: Door) -> list[int]:
    return [int(each) for each in dict.fromkeys([door.answers, *door.also, *map(status_of, door.errors)])]


def one_line(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())
