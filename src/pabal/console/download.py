"""A document to take along: a file for whoever asked, and left in no cache on its way."""

from typing import Any

import msgspec
from starlette.responses import Response


def download(document: dict[str, Any], name: str) -> Response:
    named = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return Response(msgspec.json.format(msgspec.json.encode(document)), media_type="application/json", headers=named)
