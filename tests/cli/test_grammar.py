"""The grammar of the command line: nouns, verbs, examples, aliases, short ids and time ranges."""

import inspect
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from uuid import UUID

import cyclopts
import pytest

from pabal.cli.app import COMMANDS, HIDDEN_ALIASES, app
from pabal.cli.old_names import ALIASES, RULE_ALIASES
from support.pabal_process import pabal
from support.terminal import Terminal

OLD_CALLS = [
    *((noun, verb) for noun, verbs in ALIASES.items() for verb in verbs),
    *(("notify", "rules", verb) for verb in RULE_ALIASES),
]
VERBS = {
    *("list", "show", "add", "set", "remove", "enable", "disable", "tail", "cancel", "publish"),
    *("export", "erase", "approve", "deny", "block", "unblock", "unpair", "link", "unlink", "pause", "resume", "test"),
    *("groups", "replay", "resolve", "send", "explain", "resend", "preview", "check", "preferences"),
    *("issue", "refresh", "verify", "revoke", "generate", "rotate", "rewrap", "retire", "up", "down", "status"),
    *("rotate-secret", "rotate-token", "set-password", "set-role", "url", "shell", "accept-restore", "preflight"),
}


def walk(command: cyclopts.App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], cyclopts.App]]:
    """Every visible command with its path."""
    yield path, command
    for name in command:
        child = command[name]
        if not name.startswith("-") and child.show:
            yield from walk(child, (*path, name))


COMMAND_TREE = dict(walk(app))
LISTS = [path for path in COMMAND_TREE if path[-1:] == ("list",) or path == ("dead-letter", "groups")]


@pytest.mark.parametrize("path", COMMAND_TREE, ids=" ".join)
def test_every_help_ends_with_two_examples_that_parse(path: tuple[str, ...], folder: Path) -> None:
    help_text = pabal(*path, "--help", folder=folder).stdout
    [heading, *lines] = (COMMAND_TREE[path].help_epilogue or "").splitlines()

    assert heading == "Examples:"
    assert len(lines) == 2
    assert "Examples:" in help_text
    for line in lines:
        program, *args = shlex.split(line.removeprefix("  $ "))
        assert program == "pabal"
        assert tuple(args[: len(path)]) == path
        arguments = args[: args.index(">")] if ">" in args else args
        app.parse_args(arguments, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_continues_its_line_in_the_list(name: str, folder: Path) -> None:
    module, summary = COMMANDS[name]
    path, _, attribute = module.partition(":")
    command = getattr(import_module(f"pabal.cli.{path}"), attribute)
    own = command.help if isinstance(command, cyclopts.App) else inspect.cleandoc(command.__doc__)

    assert own.splitlines()[0] == summary
    assert " ".join(own.split()) in shown_help(name, folder=folder)


@pytest.mark.parametrize("path", COMMAND_TREE, ids=" ".join)
def test_an_id_says_its_forms_and_a_flag_has_no_second_name(path: tuple[str, ...], folder: Path) -> None:
    text = shown_help(*path, folder=folder)

    assert not re.search(r" ID +(\[|$)|--no-(yes|dry-run)|IDPATTERN|TIMEDELTA", text)


def test_nouns_are_singular_and_verbs_are_the_same_everywhere() -> None:
    plural = [noun for noun in COMMANDS if noun.endswith("s") and noun not in {"settings", "address", "status"}]
    groups = {path[:-1] for path in COMMAND_TREE if path}
    verbs = {path[-1] for path in COMMAND_TREE if len(path) > 1 and path not in groups}

    assert plural == []
    assert verbs <= VERBS


@pytest.mark.parametrize("call", OLD_CALLS, ids=" ".join)
def test_old_names_still_work_and_are_hidden(call: tuple[str, ...], folder: Path) -> None:
    assert "Usage" in pabal(*call, "--help", folder=folder).stdout
    assert call[0] in HIDDEN_ALIASES
    assert f"│ {call[0]} " not in pabal("--help", folder=folder).stdout


def test_completion_is_installed_for_a_shell(folder: Path) -> None:
    script = folder / "completion.bash"

    result = pabal("--install-completion", "--shell", "bash", "--output", str(script), folder=folder)

    assert str(script) in result.stdout
    assert "dead-letter" in script.read_text()
    assert "notify" not in script.read_text()


@pytest.mark.anyio
class TestOnAHub:
    async def test_a_flag_with_many_values_does_not_take_the_next_argument(self, terminal: Terminal) -> None:
        added = await terminal.read("service", "add", "--permission", "write", "shop")

        assert (added["name"], added["permissions"]) == ("shop", ["write"])

    async def test_short_ids_work_wherever_an_id_does(self, terminal: Terminal) -> None:
        event, dead_letter = await terminal.event_queue.publish_failed()
        subscription = (await terminal.read("subscription", "add", "order.*", "--service", "minu_build"))["id"]
        rule = await terminal.read("token", "issue", "minu_find")

        for command, row in (
            (("event", "show"), event),
            (("dead-letter", "show"), dead_letter),
            (("subscription", "show"), subscription),
        ):
            for text in (short(row), short(row).replace("…", "..."), str(row)[:18]):
                assert (await terminal.read(*command, text))["id"] == str(row)
        assert (await terminal.read("trace", short(event)))["about"] == str(event)
        revoked = await terminal.read("token", "revoke", "--family", short(rule["family"]))
        assert revoked["family"] == rule["family"]

    async def test_an_ambiguous_id_lists_what_it_matches(self, terminal: Terminal) -> None:
        first = await terminal.event_queue.publish()
        twin = UUID(int=first.int ^ (1 << 40))  # same beginning and same end
        await terminal.event_queue.owner.execute(
            "insert into public.event_queue (id, event_type, source_service, target_service)"
            " select $2, event_type, source_service, target_service from public.event_queue where id = $1",
            first,
            twin,
        )

        refused = await terminal.run("event", "show", short(first), code=1)
        missing = await terminal.run("event", "show", "01a1e213…ffffff", code=1)
        invalid = await terminal.run("event", "show", "01a1e2", code=2)

        assert all(row in refused.stderr for row in (str(first), str(twin)))
        assert "is ambiguous" in refused.stderr
        assert missing.stderr == "pabal: No event matches 01a1e213…ffffff\n"
        assert "must be an id, its first 8 or more characters, or its short form" in invalid.stderr

    @pytest.mark.parametrize("noun", ["event", "notification", "message", "audit", "dead-letter"])
    async def test_every_list_by_time_takes_since_and_until(self, terminal: Terminal, noun: str) -> None:
        for options in (["--since", "15m"], ["--until", "15m"], ["--since", "2026-01-31T18:00", "--until", "1h"]):
            await terminal.items(noun, "list", *options)

    @pytest.mark.parametrize("path", LISTS, ids=" ".join)
    async def test_every_list_as_json_is_items_and_a_cursor(self, terminal: Terminal, path: tuple[str, ...]) -> None:
        assert isinstance(await terminal.items(*path), list)

    async def test_since_and_until_bound_a_list(self, terminal: Terminal) -> None:
        old, new = [await terminal.event_queue.publish() for _ in range(2)]
        await terminal.event_queue.owner.execute(
            "update public.event_queue set created_at = created_at - interval '2 hours' where id = $1", old
        )

        async def listed(*options: str) -> list[str]:
            return [event["id"] for event in await terminal.items("event", "list", *options)]

        assert await listed("--since", "1h") == [str(new)]
        assert await listed("--until", "1h") == [str(old)]
        assert await listed("--since", "3h", "--until", "0s") == [str(new), str(old)]
        page = await terminal.read("event", "list", "--since", "1h", "--limit", "1")
        rest = await terminal.read("event", "list", "--since", "1h", "--limit", "1", "--cursor", page["cursor"])
        assert rest["items"] == []


def shown_help(*path: str, folder: Path) -> str:
    """The help of a command as one line, without the frame."""
    text = pabal(*path, "--help", folder=folder).stdout
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def short(row: object) -> str:
    return f"{str(row)[:8]}…{str(row)[-6:]}"
