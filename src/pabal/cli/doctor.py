"""`pabal doctor`."""

import asyncio
import sys
from dataclasses import asdict

from rich.text import Text

from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.output import print_json, print_text, stdout_console
from pabal.cli.target import running_target
from pabal.core.errors import EmbeddedServerError, SetupError
from pabal.core.log import configure_logging
from pabal.doctor import FindingLevel, run_checks
from pabal.hub import DatabaseUrls
from pabal.settings import load_settings

LEVEL_STYLES = {FindingLevel.GOOD: "green", FindingLevel.WARNING: "yellow", FindingLevel.BAD: "red"}


def doctor_command(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Look at the ground the hub stands on; say what is wrong and what to do. Exits with 1 if anything is bad."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    configure_logging(settings.log_level, settings.log_format)
    roads: DatabaseUrls | None
    try:
        roads = running_target(settings).urls
    except EmbeddedServerError:
        raise
    except SetupError:  # nothing runs, which is a finding of its own
        roads = None
    findings = asyncio.run(run_checks(settings, roads))
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            line = Text.assemble(
                (f"{finding.level:8}", LEVEL_STYLES[finding.level]), (finding.what, "bold"), f": {finding.seen}"
            )
            stdout_console.print(line)
            if finding.advice:
                print_text(f"        → {finding.advice}")
    if any(finding.level is FindingLevel.BAD for finding in findings):
        sys.exit(1)
