"""A document to take along: a file for whoever asked, and left in no cache on its way."""

from typing import Any

import msgspec
from starlette.responses import Response


def json_download(document: dict[str, Any], filename: str) -> Response:
    named = {"content-disposition": f'attachment; filename="{filename}"', "cache-control": "no-store"}
    return Response(msgspec.json.format(msgspec.json.encode(document)), media_type="application/json", headers=named)
