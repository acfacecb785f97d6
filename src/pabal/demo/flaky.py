"""Other people's receivers, played: one does its work, one has moods, one has moved away."""

import asyncio
from itertools import count

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

SLOW_RECEIVER_SECONDS = 0.8
"""Seconds; less than a stopping hub waits."""


class FakeReceivers:
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
        return (
            receiver_fails(500, "the scanner is on fire")
            if event["event_type"] == "stock.counted"
            else receiver_accepts()
        )

    async def mailer(self, request: Request) -> Response:
        """Knows when a mailbox is none. Every fifth letter finds it away, every third finds it slow."""
        event, number = await request.json(), next(self._mails)
        if event["event_type"] == "mail.bounced":
            return receiver_fails(422, "no such mailbox")
        if number % 5 == 0:
            return receiver_fails(503, "out of stamps")
        if number % 3 == 0:
            await asyncio.sleep(SLOW_RECEIVER_SECONDS)
        return receiver_accepts()

    async def crm(self, _request: Request) -> Response:
        """Takes a few, then it is gone for good."""
        return (
            receiver_accepts()
            if next(self._customers) <= 2  # noqa: PLR2004
            else receiver_fails(410, "this CRM was replaced last spring")
        )


def receiver_accepts() -> Response:
    return Response(status_code=204)


def receiver_fails(status: int, error: str) -> Response:
    return PlainTextResponse(error, status)
