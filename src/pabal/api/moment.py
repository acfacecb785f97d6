"""Moments: what happened to something, in words and in order, as doors tell it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from pabal.api.door import ResponseBody


class TraceEntryLike(Protocol):
    @property
    def at(self) -> datetime: ...
    @property
    def kind(self) -> str: ...
    @property
    def says(self) -> str: ...


class TraceEntryView(ResponseBody, frozen=True):
    """Something that happened to it, in words."""

    at: datetime
    kind: str
    says: str


def trace_entry_views(entries: Iterable[TraceEntryLike]) -> list[TraceEntryView]:
    return [TraceEntryView(each.at, each.kind, str(each.says)) for each in entries]
