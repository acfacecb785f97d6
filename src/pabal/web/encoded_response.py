"""A response whose body is encoded already."""

from starlette.responses import Response

JSON_CONTENT_TYPE = (b"content-type", b"application/json")


class EncodedJsonResponse(Response):
    """JSON in bytes, with a length and a content type, which are all the headers that are built."""

    media_type = "application/json"

    def __init__(self, body: bytes, status: int) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), JSON_CONTENT_TYPE]


def has_only_json_headers(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the headers are those of an EncodedJsonResponse."""
    return len(headers) == 2 and headers[1] is JSON_CONTENT_TYPE  # noqa: PLR2004 its length and its type
