"""`pabal doctor`."""

import asyncio
import sys
from dataclasses import asdict

from rich.text import Text

from pabal import doctor as examination
from pabal.cli import screen
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.roads import running_target
from pabal.core import log
from pabal.core.errors import EmbeddedServerError, SetupError
from pabal.doctor import FindingLevel
from pabal.settings import load_settings
from pabal.wiring import DatabaseUrls

LEVEL_STYLES = {FindingLevel.GOOD: "green", FindingLevel.WARNING: "yellow", FindingLevel.BAD: "red"}


def doctor_command(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Look at the ground the hub stands on; say what is wrong and what to do. Exits with 1 if anything is bad."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    log.configure_logging(settings.log_level, settings.log_format)
    roads: DatabaseUrls | None
    try:
        roads = running_target(settings).urls
    except EmbeddedServerError:
        raise
    except SetupError:  # nothing runs, which is a finding of its own
        roads = None
    findings = asyncio.run(examination.run_checks(settings, roads))
    if json:
        screen.print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            line = Text.assemble(
                (f"{finding.level:8}", LEVEL_STYLES[finding.level]), (finding.what, "bold"), f": {finding.seen}"
            )
            screen.stdout_console.print(line)
            if finding.advice:
                screen.print_text(f"        → {finding.advice}")
    if any(finding.level is FindingLevel.BAD for finding in findings):
        sys.exit(1)
