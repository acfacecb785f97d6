"""`pabal demo`: a hub with everybody it needs, played on loopback."""

import asyncio
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import SecretStr

from pabal.cli import screen
from pabal.cli.migrate import bring_up
from pabal.cli.options import Port
from pabal.cli.program import load
from pabal.cli.roads import Ground, started
from pabal.cli.up import first_password, keep, listen, run, run_until_stopped
from pabal.core import log
from pabal.core.errors import PortTaken
from pabal.demo.bot import EchoBot
from pabal.demo.chatter import Visitor
from pabal.demo.discord import TOKEN
from pabal.demo.people import MINA, OPERATORS_CHANNEL
from pabal.demo.props import set_up
from pabal.demo.shop import Town
from pabal.demo.stage import DISCORD, RECEIVERS, address_of, elsewhere_at, kakao_at
from pabal.settings import Settings, read
from pabal.wiring import open_hub

LOOPBACK = "127.0.0.1"
BILLING = "pabal.demo.billing:hub"

ChatPort = Annotated[int | None, Parameter(help="Port of the chat page. Default: the one after the hub's.")]
Folder = Annotated[Path | None, Parameter(help="Where to keep what was said. Default: nowhere, it is forgotten.")]
Bot = Annotated[bool, Parameter(help="Play the bot too; without it, connect a plugin of your own.")]
Samples = Annotated[bool, Parameter(help="Play a shop with its services, receivers and people too.")]
Language = Annotated[
    Literal["ko", "en"] | None, Parameter(help="What the hub itself speaks in the chat. [PABAL_CHAT_LANGUAGE]")
]

ALONE: dict[str, Any] = dict.fromkeys(
    (
        "database_url",
        "database_direct_url",
        "keys",
        "admin_password",
        "public_url",
        "webhook_secret",
        "webhook_secret_previous",
        "discord_token",
        "operator_channel",
        "templates",
    )
)
"""What a real hub may have been told here is not for a play: nobody's database is touched, nobody's keys are used."""
SEE = (
    "See      Events: a shop at work   Dead letters: what went wrong   Services: one is paused, one is gone",
    "         Notifications: sent, refused, held back, planned   Relay: somebody who talks with a bot",
)
WAITING = {"ko": "생각하고 있어요…", "en": "Thinking…"}


@dataclass(frozen=True, slots=True)
class Stage:
    """Where everybody is, and who was asked for."""

    hub: socket.socket
    chat: socket.socket
    elsewhere: socket.socket
    has_bot: bool
    has_samples: bool
    is_kept: bool

    def set(self) -> dict[str, Any]:
        """What the hub has to know of it."""
        elsewhere = address_of(self.elsewhere)
        known = {"host": LOOPBACK, "port": self.hub.getsockname()[1]}
        known |= {"callback_allow": [address_of(self.chat), elsewhere]}
        discord = {"discord_token": SecretStr(TOKEN), "discord_api_url": elsewhere + DISCORD}
        return known | (discord | {"operator_channel": OPERATORS_CHANNEL} if self.has_samples else {})


def demo(
    *,
    port: Port = None,
    chat_port: ChatPort = None,
    data_dir: Folder = None,
    bot: Bot = True,
    samples: Samples = True,
    language: Language = None,
) -> None:
    """Try the hub without anybody else: a chat page that plays KakaoTalk, a bot that answers, a shop at work."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to stop while starting, it stops as by Ctrl-C
    with folder_of(data_dir) as folder, ExitStack() as stack:
        settings = as_played(read(port=port, chat_language=language)).model_copy(update={**ALONE, "data_dir": folder})
        log.configure(settings.log_level, settings.log_format)
        listener = stack.enter_context(taking(settings, "--port"))
        after = listener.getsockname()[1] + 1 if settings.port else 0
        chat = stack.enter_context(taking(settings, "--chat-port", after if chat_port is None else chat_port))
        elsewhere = stack.enter_context(taking(settings, "--port", 0))
        stage = Stage(listener, chat, elsewhere, bot, samples, data_dir is not None)
        settings = settings.model_copy(update=stage.set())
        with started(settings) as ground:
            run(play(settings, ground, stage))


async def play(settings: Settings, ground: Ground, stage: Stage) -> None:
    """Migrate, put everybody on, say where they are."""
    await bring_up(settings, ground)
    here, chat, elsewhere = address_of(stage.hub), address_of(stage.chat), address_of(stage.elsewhere)
    async with (
        open_hub(settings, ground.roads) as hub,
        kakao_at(stage.chat, here, has_bot=stage.has_bot) as kakao,
        elsewhere_at(stage.elsewhere),
    ):
        password = await first_password(hub)
        screen.say(f"Chat     {chat}   (plays KakaoTalk)", "bold")
        screen.say(f"Console  {here}   (sign in as admin with the password {password or 'of the first start'})")
        company = [keep(settings, ground), *([EchoBot(here, kakao.announce).run()] if stage.has_bot else [])]
        handlers = None
        if stage.has_samples:
            props = await set_up(hub, elsewhere + RECEIVERS)
            handlers = load(BILLING)
            async with hub.transaction() as tx:
                await handlers.announce(tx)
            company += [Town(here, props.secrets).run(), Visitor(here, kakao).run()]
            screen.say(f"Person   {here}/me?token={props.link}   ({MINA.name}; opens once, within 15 minutes)")
            for line in SEE:
                screen.say(line)
        screen.say(f"Stop     Ctrl-C   ({'what was said is kept' if stage.is_kept else 'everything is forgotten'})")
        async with beside(*company):
            await run_until_stopped(hub, stage.hub, works=True, handlers=handlers)


@asynccontextmanager
async def beside(*company: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run these as long as the rest does."""
    tasks = [asyncio.create_task(each) for each in company]
    for task in tasks:
        task.add_done_callback(miss)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def miss(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.get_logger().error("character left", exc_info=error)


@contextmanager
def folder_of(data_dir: Path | None) -> Generator[Path]:
    """The folder somebody chose, or one that goes with the play."""
    if data_dir is not None:
        yield data_dir.expanduser()
        return
    with tempfile.TemporaryDirectory(prefix="pabal-demo-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        folder.chmod(0o711)  # root's database runs as somebody else, who has to come through
        yield folder


def as_played(settings: Settings) -> Settings:
    """What nobody has chosen is as a play needs it.

    That is a terminal that stays quiet whatever goes wrong on stage, and something to read while the bot thinks.
    """
    wishes = {"log_level": "error", "waiting_text": WAITING[settings.chat_language]}
    return settings.model_copy(
        update={name: wish for name, wish in wishes.items() if name not in settings.model_fields_set}
    )


def taking(settings: Settings, option: str, port: int | None = None) -> socket.socket:
    """Take a port on loopback: a play is for one machine."""
    where = {"host": LOOPBACK, "port": settings.port if port is None else port}
    try:
        return listen(settings.model_copy(update=where))
    except PortTaken:
        raise PortTaken(f"cannot listen on {LOOPBACK}:{where['port']}; choose another port with {option}") from None
