"""`pabal doctor`."""

import asyncio
import sys
from dataclasses import asdict

from rich.text import Text

from pabal import doctor as examination
from pabal.cli import screen
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.roads import running
from pabal.core import log
from pabal.core.errors import EmbeddedFailed, Failed
from pabal.doctor import Level
from pabal.settings import read
from pabal.wiring import Roads

COLOUR = {Level.GOOD: "green", Level.WARNING: "yellow", Level.BAD: "red"}


def doctor(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Look at the ground the hub stands on; say what is wrong and what to do. Exits with 1 if anything is bad."""
    settings = read(data_dir=data_dir, database_url=database_url)
    log.configure(settings.log_level, settings.log_format)
    roads: Roads | None
    try:
        roads = running(settings).roads
    except EmbeddedFailed:
        raise
    except Failed:  # nothing runs, which is a finding of its own
        roads = None
    findings = asyncio.run(examination.examine(settings, roads))
    if json:
        screen.as_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            line = Text.assemble(
                (f"{finding.level:8}", COLOUR[finding.level]), (finding.what, "bold"), f": {finding.seen}"
            )
            screen.out.print(line)
            if finding.advice:
                screen.say(f"        → {finding.advice}")
    if any(finding.level is Level.BAD for finding in findings):
        sys.exit(1)
