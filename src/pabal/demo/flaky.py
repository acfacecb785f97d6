"""Other people's receivers, played: one does its work, one has moods, one has moved away."""

import asyncio
from itertools import count

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

SLOW = 0.8
"""Seconds; less than a stopping hub waits."""


class Receivers:
    """The webhooks of three services."""

    def __init__(self) -> None:
        self._mails = count(1)
        self._customers = count(1)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/warehouse", self.warehouse, methods=["POST"]),
            Route("/mailer", self.mailer, methods=["POST"]),
            Route("/crm", self.crm, methods=["POST"]),
        ]

    async def warehouse(self, request: Request) -> Response:
        """Takes everything but a count of its own shelves."""
        event = await request.json()
        return fails(500, "the scanner is on fire") if event["event_type"] == "stock.counted" else took()

    async def mailer(self, request: Request) -> Response:
        """Knows when a mailbox is none. Every fifth letter finds it away, every third finds it slow."""
        event, number = await request.json(), next(self._mails)
        if event["event_type"] == "mail.bounced":
            return fails(422, "no such mailbox")
        if number % 5 == 0:
            return fails(503, "out of stamps")
        if number % 3 == 0:
            await asyncio.sleep(SLOW)
        return took()

    async def crm(self, _request: Request) -> Response:
        """Takes a few, then it is gone for good."""
        return took() if next(self._customers) <= 2 else fails(410, "this CRM was replaced last spring")  # noqa: PLR2004 a few


def took() -> Response:
    return Response(status_code=204)


def fails(status: int, why: str) -> Response:
    return PlainTextResponse(why, status)
