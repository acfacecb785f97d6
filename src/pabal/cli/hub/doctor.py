"""`pabal doctor`."""

import asyncio
import sys
from dataclasses import asdict

from rich.text import Text

from pabal.cli.database_settings import database_settings
from pabal.cli.hub.finding_output import LEVEL_STYLES
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json
from pabal.cli.output import print_json_items, print_text, stdout_console
from pabal.cli.target import running_target
from pabal.core.errors import EmbeddedServerError, SetupError
from pabal.core.finding import FindingLevel
from pabal.core.log import configure_logging
from pabal.db.urls import DatabaseUrls
from pabal.doctor.doctor import run_checks
from pabal.settings import load_settings


def doctor_command(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Check the installation and suggest fixes.

    Checks the settings, the database and the system. Exits with 1 if something is broken.
    """
    settings = load_settings(data_dir=connection.data_dir, database_url=connection.database_url)
    configure_logging(settings.log_level, settings.log_format)
    urls: DatabaseUrls | None
    try:
        urls = running_target(database_settings(settings)).urls
    except EmbeddedServerError:
        raise
    except SetupError:  # no hub is running; the checks report it
        urls = None
    findings = asyncio.run(run_checks(settings, urls))
    if json:
        print_json_items(map(asdict, findings))
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
