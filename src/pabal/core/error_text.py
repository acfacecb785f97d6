"""Error texts as the hub stores them: bounded, without secrets, and with nothing that PostgreSQL cannot store.

They come from handlers, consumers and receivers, so they may be long, and may contain what these programs know.
"""

from pabal.core.redact import redact_text

MAX_ERROR_LENGTH = 4000
MAX_STACK_LENGTH = 8000
MAX_CODE_LENGTH = 100


def clean_error_text(text: str, limit: int = MAX_ERROR_LENGTH) -> str:
    """Shorten a text to `limit` characters and redact its secrets.

    A long text keeps its beginning and its end, where a stack trace has its cause. It is cut first, so the time is
    bounded, and between words, so that no part of a secret is left without the words that identify it.
    """
    storable = cut_middle(text, limit).replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    return redact_text(storable)[:limit]


def cut_middle(text: str, limit: int) -> str:
    """Replace the middle of a long text by the number of characters that are missing."""
    if len(text) <= limit:
        return text
    half = (limit - len(cut_mark(len(text)))) // 2
    if half <= 0:
        return text[:limit]
    head, tail = text[:half], text[-half:]
    head = head[: max(head.rfind(" "), head.rfind("\n")) + 1] or head
    starts = [start for start in (tail.find(" "), tail.find("\n")) if start >= 0]
    tail = tail[min(starts) :] if starts else ""
    return f"{head}{cut_mark(len(text) - len(head) - len(tail))}{tail}"


def cut_mark(length: int) -> str:
    return f"… [{length} characters cut] …"
