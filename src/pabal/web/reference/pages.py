"""The API reference, generated from the route table: `/openapi.json`, the page `/docs`, and `docs/api.md`."""

import re
from collections.abc import Iterator
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from pabal.web.reference.entries import ReferenceEntry, ReferenceObject, build_reference
from pabal.web.reference.fields import FieldRow
from pabal.web.reference.openapi import build_openapi
from pabal.web.route import Route

CODE_SPAN = re.compile(r"`([^`]+)`")
API_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("pabal.web.reference"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
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

Times in JSON are RFC 3339 texts, unless a field says otherwise. The examples read from the environment what differs
between hubs: `PABAL_URL` is the hub's address, `PABAL_TOKEN` an access token with the required permission,
`PABAL_SERVICE` and `PABAL_SECRET` a service's name and secret, `RELAY_TOKEN` a session token or an account's relay
token, `PERSON_TOKEN` a person's token. The tests run every example.
"""


def reference_routes(routes: tuple[Route, ...]) -> tuple[Route, ...]:
    """The routes that serve the reference of these routes."""
    openapi = build_openapi(routes)
    document = msgspec.json.encode(openapi)
    page = API_TEMPLATES.get_template("docs.html").render(reference=build_reference(routes, openapi)).encode()

    async def openapi_document() -> Response:
        """Get this API as an OpenAPI 3.1 document."""
        return Response(document, media_type="application/json")

    async def docs() -> HTMLResponse:
        """Get this API as a web page."""
        return HTMLResponse(page)

    return (
        Route("GET", "/openapi.json", openapi_document, response=dict[str, Any], tag="about"),
        Route("GET", "/docs", docs, media_type="text/html", tag="about"),
    )


def inline_code(text: str) -> Markup:
    """Escape the text; what stands between backticks becomes code."""
    return Markup(CODE_SPAN.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 escaped


def link_type(row: FieldRow) -> Markup:
    """The type of a field, with a link to the object that it names."""
    if not row.object_name:
        return escape(row.type)
    link = Markup('<a href="#{0}">{0}</a>').format(row.object_name)
    return Markup(str(escape(row.type)).replace(row.object_name, link))  # noqa: S704 escaped


API_TEMPLATES.filters |= {"inline_code": inline_code, "link_type": link_type}


def api_markdown(routes: tuple[Route, ...]) -> str:
    reference = build_reference(routes, build_openapi(routes))
    lines = [MARKDOWN_INTRO]
    for tag, entries in reference.groups.items():
        lines += [f"## {tag.capitalize()}", "", "| endpoint | statuses | |", "|---|---|---|"]
        lines += [markdown_summary(entry) for entry in entries]
        lines.append("")
        for entry in entries:
            lines += markdown_entry(entry)
    lines += ["## Objects", "", "Objects that several endpoints use, or that are part of another one.", ""]
    for item in reference.objects:
        lines += markdown_object(item)
    return "\n".join(lines).rstrip("\n") + "\n"


def markdown_summary(entry: ReferenceEntry) -> str:
    route = entry.route
    return f"| [`{route.method} {route.path}`](#{entry.anchor}) | {', '.join(entry.statuses)} | {entry.summary} |"


def markdown_entry(entry: ReferenceEntry) -> Iterator[str]:
    route = entry.route
    yield from (f'<a id="{entry.anchor}"></a>', "", f"### {route.method} {route.path}", "", entry.summary, "")
    for paragraph in entry.paragraphs:
        yield from (paragraph, "")
    if entry.others:
        yield from (f"Also available as {', '.join(f'`{other.method} {other.path}`' for other in entry.others)}.", "")
    yield from markdown_table("Path", entry.path_fields)
    yield from markdown_table("Query", entry.query_fields)
    yield from markdown_table(f"Body (`{entry.body_type}`)", entry.body_fields)
    yield from markdown_table("Response", entry.response)
    if entry.returned_object:
        yield from (f"Returns {markdown_type(entry.returns, entry.returned_object)}.", "")
    elif entry.returns and not entry.response:
        yield from (f"Returns `{route.media_type}`.", "")
    yield from ("<details><summary>Examples</summary>", "")
    for label, source in entry.samples.items():
        yield from (f"```{'python' if label == 'Python' else 'sh'}", source, "```", "")
    yield from ("</details>", "")


def markdown_object(item: ReferenceObject) -> Iterator[str]:
    yield from (f"### {item.name}", "")
    if item.description:
        yield from (item.description, "")
    yield from markdown_table("", item.fields)


def markdown_table(title: str, rows: list[FieldRow]) -> Iterator[str]:
    if not rows:
        return
    if title:
        yield from (f"**{title}**", "")
    yield from ("| field | type | |", "|---|---|---|")
    for row in rows:
        name = f"`{row.name}`{' (required)' if row.required and title.startswith(('Body', 'Query')) else ''}"
        yield f"| {name} | {markdown_type(row.type, row.object_name)} | {row.description} |"
    yield ""


def markdown_type(text: str, object_name: str) -> str:
    return text.replace(object_name, f"[{object_name}](#{object_name.lower()})") if object_name else text
