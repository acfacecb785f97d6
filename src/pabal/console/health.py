"""How the ground is that the hub stands on, and what it was told to do: the doctor's findings and the settings."""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from pabal import doctor
from pabal.console.gate import Look
from pabal.console.pages import page
from pabal.core.phrase import words
from pabal.doctor import Finding, Level
from pabal.operators.operators import Session
from pabal.settings import Settings, origin, shown, variable
from pabal.wiring import Hub

LOOKED_AT = words(
    "address",
    "callback origins",
    "database",
    "database role",
    "disk",
    "doorbell",
    "encrypted values",
    "keys",
    "passwords",
    "pooler",
    "schema",
    "settings",
    "signing key",
    "trusted proxies",
    "webhook secret",
)
FRESH = 10.0
"""Seconds an examination is good for: the doctor comes on connections of its own, and not for each who looks."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What the doctor found, and when."""

    at: datetime
    findings: list[Finding]

    @property
    def worst(self) -> Level:
        levels = {finding.level for finding in self.findings}
        return next(level for level in (Level.BAD, Level.WARNING, Level.GOOD) if level in levels)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting in force; a secret is not told, only that there is one."""

    name: str
    value: str | None
    is_set: bool
    about: str


class Practice:
    """Calls the doctor for whoever looks, one at a time."""

    def __init__(self) -> None:
        self._last: tuple[float, Examined] | None = None
        self._looking = asyncio.Lock()

    async def visit(self, hub: Hub) -> Examined:
        async with self._looking:
            now = time.monotonic()
            if self._last is None or now - self._last[0] >= FRESH:
                found = await doctor.examine(hub.settings, hub.roads)
                self._last = (now, Examined(datetime.now(UTC), found))
            return self._last[1]


async def show(hub: Hub, request: Request, session: Session) -> Response:
    state = request.app.state
    if not hasattr(state, "practice"):
        state.practice = Practice()
    practice: Practice = state.practice
    settings = in_force(hub.settings)
    return page(
        request,
        "health.html",
        session=session,
        examined=await practice.visit(hub),
        names=LOOKED_AT,
        changed=[setting for setting in settings if setting.is_set],
        untouched=[setting for setting in settings if not setting.is_set],
    )


def in_force(settings: Settings) -> list[Setting]:
    return [
        Setting(
            name=variable(name),
            value=told(shown(getattr(settings, name))),
            is_set=origin(settings, name) == "set",
            about=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def told(value: object) -> str | None:
    """A value as it would be written into the environment; None where there is nothing."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


PAGES = (Look("/console/health", show),)
