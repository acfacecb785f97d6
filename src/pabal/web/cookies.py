"""Read cookies. The standard library's parser takes quadratic time before Python 3.11.10 and 3.12.6."""

from starlette.requests import Request

MAX_COOKIE_LENGTH = 4096
"""Browsers send no longer ones, and ours are shorter."""


def read_cookie(request: Request, name: str) -> str:
    """The value of one of our cookies; empty without one. Of several with the same name, the last one counts."""
    prefix = name.encode() + b"="
    value = b""
    for header, pairs in request.scope["headers"]:
        if header == b"cookie" and prefix in pairs:
            for pair in pairs.split(b";"):
                if (stripped := pair.strip(b" \t")).startswith(prefix):
                    value = stripped[len(prefix) :]
    if len(value) > MAX_COOKIE_LENGTH:
        return ""
    return value.decode("latin-1").removeprefix('"').removesuffix('"')
