"""The health page: the findings of the doctor and the settings in effect."""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Page
from pabal.console.pages import render_page
from pabal.core.finding import Finding, FindingLevel
from pabal.core.messages import message_table
from pabal.doctor.doctor import run_checks
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.settings import Settings, variable_name
from pabal.settings_display import display_setting, setting_source

CHECK_NAMES = message_table(
    "address",
    "audit chain",
    "audit head",
    "callback origins",
    "chores",
    "claims by SQL",
    "consumers",
    "database",
    "database role",
    "database user",
    "dead letters",
    "disk",
    "doorbell",
    "encrypted values",
    "hubs",
    "keys",
    "lanes",
    "nats",
    "ordering keys",
    "passwords",
    "planner settings",
    "pooler",
    "python",
    "receivers",
    "relay texts",
    "schema",
    "settings",
    "signing key",
    "trusted proxies",
    "wake-ups",
    "webhook secret",
)
REPORT_MAX_AGE = 10.0
"""Seconds a report is reused: the doctor opens connections of its own, and many may look at the page."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The findings of one run of the doctor."""

    at: datetime
    findings: list[Finding]

    @property
    def worst_level(self) -> FindingLevel:
        levels = {finding.level for finding in self.findings}
        return next(level for level in (FindingLevel.BAD, FindingLevel.WARNING, FindingLevel.GOOD) if level in levels)


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """A setting in effect. The value of a secret is hidden."""

    name: str
    value: str | None
    is_set: bool
    description: str


class DoctorCache:
    """Runs the doctor on demand, one run at a time, and keeps the report for a moment."""

    def __init__(self) -> None:
        self._last: tuple[float, DoctorReport] | None = None
        self._lock = asyncio.Lock()

    async def get_report(self, hub: Hub) -> DoctorReport:
        async with self._lock:
            now = time.monotonic()
            if self._last is None or now - self._last[0] >= REPORT_MAX_AGE:
                findings = await run_checks(hub.settings, hub.database_urls, hub.untrusted_proxies.peer)
                self._last = (now, DoctorReport(datetime.now(UTC), findings))
            return self._last[1]


async def health_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    state = request.app.state
    if not hasattr(state, "doctor_cache"):
        state.doctor_cache = DoctorCache()
    cache: DoctorCache = state.doctor_cache
    settings = effective_settings(hub.settings)
    return render_page(
        request,
        "health.html",
        session=session,
        report=await cache.get_report(hub),
        check_names=CHECK_NAMES,
        changed_settings=[setting for setting in settings if setting.is_set],
        default_settings=[setting for setting in settings if not setting.is_set],
    )


def effective_settings(settings: Settings) -> list[EffectiveSetting]:
    return [
        EffectiveSetting(
            name=variable_name(name),
            value=format_setting(display_setting(getattr(settings, name))),
            is_set=setting_source(settings, name) == "set",
            description=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def format_setting(value: object) -> str | None:
    """Format a value as it is written in the environment. None means not set."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


PAGES = (Page("/console/health", health_page),)
