"""The `pabal` command: one file per noun."""

import sys

import cyclopts

from pabal.cli import (
    account,
    audit,
    conversation,
    database,
    dead,
    demo,
    doctor,
    event,
    keys,
    message,
    migrate,
    pair,
    screen,
    services,
    settings,
    subscription,
    token,
    trace,
    up,
    version,
    worker,
)
from pabal.core.errors import Misconfigured, PabalError

app = cyclopts.App(
    name="pabal",
    help="A delivery hub on one PostgreSQL: chat relay, service events, notifications.",
    version=version.text,
    version_flags=["--version", "-V"],
    help_format="plaintext",
)
app.command(up.up)
app.command(up.serve)
app.command(up.work)
app.command(demo.demo)
app.command(migrate.app)
app.command(doctor.doctor)
app.command(settings.settings)
app.command(database.app)
app.command(services.app)
app.command(subscription.app)
app.command(event.app)
app.command(dead.app)
app.command(account.app)
app.command(pair.app)
app.command(message.app)
app.command(conversation.app)
app.command(trace.trace)
app.command(worker.app)
app.command(token.app)
app.command(keys.app)
app.command(audit.app)
app.command(version.version)


def main() -> None:
    """Run a command; an error is one clear line and an exit code."""
    try:
        app(exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        screen.complain(" ".join(str(error).split()))
        sys.exit(2)
    except Misconfigured as error:
        for mistake in error.mistakes:
            screen.complain(str(mistake))
        sys.exit(2)
    except PabalError as error:
        screen.complain(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
