"""Answers: what was said back to some messages, and those that did not get through."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class ReplySummary:
    """What was answered to a message, and what became of that. `response` is empty while only the hub has spoken."""

    message_id: UUID
    state: str
    spent_by: str | None
    response: dict[str, Any] | None
    answered_at: datetime | None
    shown_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class FailedCallback:
    """A callback that Kakao refused, or of which nothing was heard."""

    id: UUID
    message_id: UUID
    account_id: UUID
    conversation_key: str
    spent_by: str
    outcome: str
    settled_at: datetime
    status_code: int | None
    error: str | None


async def find_reply_summaries(
    tx: Tx, message_ids: Collection[UUID], account: UUID | None = None
) -> dict[UUID, ReplySummary]:
    """What was answered to these: an account's own, or for an operator and for the person who asked, anybody's."""
    found = await tx.all(ReplySummary, Q.find_reply_summaries, messages=[*message_ids], account=account)
    return {each.message_id: each for each in found}


async def list_failed_callbacks(
    tx: Tx, *, before: tuple[datetime, UUID] | None = None, limit: int = 50
) -> list[FailedCallback]:
    """Callbacks that failed, the newest first, for an operator; `before` is where the page before ended."""
    at, row = before or (None, None)
    return await tx.all(FailedCallback, Q.list_failed_callbacks, before=at, before_id=row, limit=limit)
