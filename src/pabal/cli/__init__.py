"""The `pabal` command: one file per noun."""

import gc
import sys
from collections.abc import Sequence

import cyclopts

from pabal.cli import screen, version
from pabal.core.errors import Misconfigured, PabalError

app = cyclopts.App(
    name="pabal",
    help="A delivery hub on one PostgreSQL: chat relay, service events, notifications.",
    version=version.text,
    version_flags=["--version", "-V"],
    help_format="plaintext",
)
COMMANDS = {
    "up": "up:up",
    "serve": "up:serve",
    "work": "up:work",
    "demo": "demo:demo",
    "migrate": "migrate:app",
    "doctor": "doctor:doctor",
    "settings": "settings:settings",
    "db": "database:app",
    "service": "services:app",
    "subscription": "subscription:app",
    "event": "event:app",
    "dead": "dead:app",
    "account": "account:app",
    "pair": "pair:app",
    "message": "message:app",
    "conversation": "conversation:app",
    "notify": "notify:app",
    "trace": "trace:trace",
    "worker": "worker:app",
    "token": "token:app",
    "keys": "keys:app",
    "audit": "audit:app",
    "admin": "admin:app",
}
"""Each is imported when it is asked for: all of them together take longer than most commands run."""
HELP = ("--help", "-h")
for name, place in COMMANDS.items():
    app.command(f"pabal.cli.{place}", name=name)
app.command(version.version)


def bring(words: Sequence[str]) -> None:
    """Import the command that is asked for; whoever asks for help is told what each of them does.

    What is imported stays: to look through it for garbage again and again would be a tenth of a short command's time,
    and all of a hub's life.
    """
    gc.disable()
    try:
        for name in COMMANDS if not words or words[0] in HELP else COMMANDS.keys() & {words[0]}:
            _ = app[name]
    finally:
        gc.freeze()
        gc.enable()


def main() -> None:
    """Run a command; an error is one clear line and an exit code."""
    try:
        bring(sys.argv[1:])
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
