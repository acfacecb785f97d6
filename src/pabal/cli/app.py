"""The command table. A command's module is imported when the command is used; `pabal --help` imports none."""

from collections.abc import Sequence
from functools import cache

import cyclopts

from pabal.cli.examples import examples
from pabal.cli.version import version_text
from pabal.core.errors import InvalidSettings, PabalError

app = cyclopts.App(
    name="pabal",
    help="A delivery hub on one PostgreSQL: chat relay, service events, notifications.",
    help_epilogue=examples("up", "event list --help"),
    help_format="plaintext",
    version=version_text,
    version_flags=["--version", "-V"],
)

COMMANDS = {
    "up": ("hub.serve:up_command", "Run the whole hub: database, API, workers and console."),
    "serve": ("hub.serve:serve_command", "Run the API and the console only."),
    "work": ("hub.serve:work_command", "Run the workers and chores only."),
    "demo": ("hub.demo:demo_command", "Try the hub with a simulated chat, bot and shop."),
    "migrate": ("hub.migrate:app", "Check, apply or revert schema migrations."),
    "adopt": ("hub.adopt:adopt_command", "Take over the specification's tables of an existing database."),
    "status": ("hub.status:status_command", "Show the state of the hub and what needs attention."),
    "backup": ("backup.backup:backup_command", "Back up the database, the settings and optionally the keys."),
    "restore": ("backup.restore:restore_command", "Restore a backup into an empty hub."),
    "upgrade-database": (
        "backup.upgrade:upgrade_database_command",
        "Load the embedded database of an older PostgreSQL into the current version.",
    ),
    "doctor": ("hub.doctor:doctor_command", "Check the installation and suggest fixes."),
    "settings": ("hub.settings:settings_command", "Show the effective settings."),
    "db": ("hub.db:app", "Connect to the hub's database."),
    "service": ("access.services:app", "Manage services and their client secrets."),
    "subscription": ("events.subscription:app", "Manage event subscriptions."),
    "event": ("events.event:app", "Publish, inspect, cancel and follow events."),
    "dead-letter": ("events.dead_letter:app", "Inspect, replay and resolve dead letters."),
    "account": ("relay.account:app", "Manage the chat relay's accounts and relay tokens."),
    "pairing": ("relay.pairing:app", "Create pairing codes."),
    "conversation": ("relay.conversation:app", "Manage conversations of the chat relay."),
    "message": ("relay.message:app", "Inspect and follow chat messages."),
    "notification": ("notifications.notification:app", "Send, inspect, cancel and resend notifications."),
    "rule": ("notifications.rule:app", "Manage the rules that turn events into notifications."),
    "template": ("notifications.template:app", "Inspect and check notification templates."),
    "person": ("notifications.person:app", "Manage the data of a notification recipient."),
    "address": ("notifications.address:app", "Manage blocked notification addresses."),
    "trace": ("trace:trace_command", "Show the history of an event, notification or message."),
    "worker": ("hub.worker:app", "List worker processes."),
    "token": ("access.token:app", "Issue, verify and revoke access tokens."),
    "key": ("access.key:app", "Manage the keys that sign, encrypt and seal."),
    "audit": ("access.audit:app", "Read and verify the audit log."),
    "operator": ("access.operator:app", "Manage the console's operators."),
    "version": ("hub.version_command:version_command", "Show the version."),
}
COMMAND_EXAMPLES = {
    "up": ("up", "up --port 8080 --data-dir ./data"),
    "serve": ("serve", "serve --host 0.0.0.0 --port 8080"),
    "work": ("work", "work --app shop.events:hub"),
    "demo": ("demo", "demo --language en --no-bot"),
    "adopt": ("adopt --dry-run", "adopt --yes"),
    "status": ("status", "status --json"),
    "backup": ("backup hub.pabal", "backup hub.pabal --with-keys --passphrase-file passphrase"),
    "restore": ("restore hub.pabal", "restore hub.pabal --data-dir ./data --accept-audit 'Moved to a new server'"),
    "upgrade-database": ("upgrade-database", "upgrade-database --old-bin /usr/lib/postgresql/17/bin"),
    "doctor": ("doctor", "doctor --json"),
    "settings": ("settings", "settings --json"),
    "trace": ("trace 01a1e213…ea569f", "trace order-7 --json"),
    "version": ("version", "version --json"),
}
"""Examples of commands without verbs. The others declare theirs beside the verb."""
HIDDEN_ALIASES = {
    "dead": "old_names:dead_app",
    "admin": "old_names:admin_app",
    "keys": "old_names:keys_app",
    "pair": "old_names:pair_app",
    "notify": "old_names:notify_app",
}
"""Names of 0.1, kept for one version."""


def command_options(name: str) -> dict[str, str]:
    return {"help_epilogue": examples(*COMMAND_EXAMPLES[name])} if name in COMMAND_EXAMPLES else {}


for name, (path, summary) in COMMANDS.items():
    app.command(f"pabal.cli.{path}", name=name, help=summary, **command_options(name))
for name, path in HIDDEN_ALIASES.items():
    app.command(f"pabal.cli.{path}", name=name, show=False)
app.command(
    "pabal.cli.completion:install_completion",
    name="--install-completion",
    help="Install completion for your shell.",
    help_epilogue=examples("--install-completion", "--install-completion --shell zsh"),
)


def import_command(args: Sequence[str]) -> None:
    """Import the module of the command that `args` names, if any."""
    if args and args[0] in COMMANDS.keys() | HIDDEN_ALIASES.keys():
        load_command(args[0])


@cache
def load_command(name: str) -> cyclopts.App:
    """Import a command. Its help is the whole text of its module, of which the table has the first line."""
    if name in COMMANDS:
        del app[name]
        app.command(f"pabal.cli.{COMMANDS[name][0]}", name=name, **command_options(name))
    return app[name]


def run_command(args: Sequence[str]) -> int:
    """Run a command and return its exit code: 2 for a usage error, 1 for a failure. Errors are one line each."""
    from pabal.cli.output import print_error

    import_command(args)
    try:
        app(args, exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.CycloptsError as error:
        print_error(usage_error_text(error))
        return 2
    except InvalidSettings as error:
        for problem in error.errors:
            print_error(str(problem))
        return 2
    except PabalError as error:
        print_error(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    return 0


def usage_error_text(error: cyclopts.CycloptsError) -> str:
    """The error as one line."""
    if isinstance(error, cyclopts.UnusedCliTokensError):
        return f"Unexpected argument: {' '.join(error.unused_tokens or ())}. Add --help to see the usage."
    return " ".join(str(error).split())
