"""The `pabal` command: one file per noun."""

import gc
import sys
from collections.abc import Sequence

import cyclopts

from pabal.cli.output import print_error
from pabal.cli.version import version_command, version_text
from pabal.core.errors import InvalidSettings, PabalError

app = cyclopts.App(
    name="pabal",
    help="A delivery hub on one PostgreSQL: chat relay, service events, notifications.",
    version=version_text,
    version_flags=["--version", "-V"],
    help_format="plaintext",
)
COMMANDS = {
    "up": "serve:up_command",
    "serve": "serve:serve_command",
    "work": "serve:work_command",
    "demo": "demo:demo_command",
    "migrate": "migrate:app",
    "doctor": "doctor:doctor_command",
    "settings": "settings:settings_command",
    "db": "db:app",
    "service": "services:app",
    "subscription": "subscription:app",
    "event": "event:app",
    "dead": "dead_letter:app",
    "account": "account:app",
    "pair": "pair:app",
    "message": "message:app",
    "conversation": "privacy:conversation_app",
    "notify": "notify:app",
    "trace": "trace:trace_command",
    "worker": "worker:app",
    "token": "token:app",
    "keys": "keys:app",
    "audit": "audit:app",
    "admin": "admin:app",
}
"""Each is imported when it is asked for: all of them together take longer than most commands run."""
HELP_FLAGS = ("--help", "-h")
for name, place in COMMANDS.items():
    app.command(f"pabal.cli.{place}", name=name)
app.command(version_command, name="version")


def import_commands(args: Sequence[str]) -> None:
    """Import the command that is asked for; whoever asks for help is told what each of them does.

    What is imported stays: to look through it for garbage again and again would be a tenth of a short command's time,
    and all of a hub's life.
    """
    gc.disable()
    try:
        for name in COMMANDS if not args or args[0] in HELP_FLAGS else COMMANDS.keys() & {args[0]}:
            _ = app[name]
    finally:
        gc.freeze()
        gc.enable()


def main() -> None:
    """Run a command; an error is one clear line and an exit code."""
    try:
        import_commands(sys.argv[1:])
        app(exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        print_error(" ".join(str(error).split()))
        sys.exit(2)
    except InvalidSettings as error:
        for mistake in error.errors:
            print_error(str(mistake))
        sys.exit(2)
    except PabalError as error:
        print_error(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
