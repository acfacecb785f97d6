"""Moments: what happened to something, in words and in order, as doors tell it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from pabal.api.door import Answer


class Happened(Protocol):
    @property
    def at(self) -> datetime: ...
    @property
    def kind(self) -> str: ...
    @property
    def says(self) -> str: ...


class MomentView(Answer, frozen=True):
    """Something that happened to it, in words."""

    at: datetime
    kind: str
    says: str


def traced(moments: Iterable[Happened]) -> list[MomentView]:
    return [MomentView(each.at, each.kind, str(each.says)) for each in moments]
