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

from pabal.cli.handlers_app import load_handlers
from pabal.cli.migrate import migrate_target
from pabal.cli.options import Port
from pabal.cli.output import print_text
from pabal.cli.serve import (
    bind_listener,
    first_admin_password,
    run_event_loop,
    run_until_stopped,
    watch_embedded_server,
)
from pabal.cli.target import DatabaseTarget, start_target
from pabal.core.errors import PortInUse
from pabal.core.log import configure_logging, get_logger
from pabal.demo.bot import EchoBot
from pabal.demo.discord import DEMO_DISCORD_TOKEN
from pabal.demo.run import DISCORD_PATH, RECEIVERS_PATH, DemoVisitor, listener_url, serve_fake_kakao, serve_fakes
from pabal.demo.seed_data import MINA, OPERATORS_CHANNEL, seed_demo
from pabal.demo.shop import DemoShop
from pabal.hub import open_hub
from pabal.settings import Settings, load_settings

LOOPBACK = "127.0.0.1"
BILLING_APP = "pabal.demo.billing:hub"

ChatPort = Annotated[int | None, Parameter(help="Port of the chat page. Default: the one after the hub's.")]
DemoDataDir = Annotated[Path | None, Parameter(help="Where to keep what was said. Default: nowhere, it is forgotten.")]
BotOption = Annotated[bool, Parameter(help="Play the bot too; without it, connect a plugin of your own.")]
SamplesOption = Annotated[bool, Parameter(help="Play a shop with its services, receivers and people too.")]
ChatLanguageOption = Annotated[
    Literal["ko", "en"] | None, Parameter(help="What the hub itself speaks in the chat. [PABAL_CHAT_LANGUAGE]")
]

RESET_SETTINGS: dict[str, Any] = dict.fromkeys(
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
TOUR_LINES = (
    "See      Events: a shop at work   Dead letters: what went wrong   Services: one is paused, one is gone",
    "         Notifications: sent, refused, held back, planned   Relay: somebody who talks with a bot",
)
WAITING_TEXTS = {"ko": "생각하고 있어요…", "en": "Thinking…"}


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Where everybody is, and who was asked for."""

    hub: socket.socket
    chat: socket.socket
    fakes: socket.socket
    has_bot: bool
    has_samples: bool
    keeps_data: bool

    def settings_update(self) -> dict[str, Any]:
        """What the hub has to know of it."""
        elsewhere = listener_url(self.fakes)
        known = {"host": LOOPBACK, "port": self.hub.getsockname()[1]}
        known |= {"callback_allow": [listener_url(self.chat), elsewhere]}
        discord = {"discord_token": SecretStr(DEMO_DISCORD_TOKEN), "discord_api_url": elsewhere + DISCORD_PATH}
        return known | (discord | {"operator_channel": OPERATORS_CHANNEL} if self.has_samples else {})


def demo_command(
    *,
    port: Port = None,
    chat_port: ChatPort = None,
    data_dir: DemoDataDir = None,
    bot: BotOption = True,
    samples: SamplesOption = True,
    language: ChatLanguageOption = None,
) -> None:
    """Try the hub without anybody else: a chat page that plays KakaoTalk, a bot that answers, a shop at work."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to stop while starting, it stops as by Ctrl-C
    with demo_data_dir(data_dir) as folder, ExitStack() as stack:
        settings = demo_settings(load_settings(port=port, chat_language=language)).model_copy(
            update={**RESET_SETTINGS, "data_dir": folder}
        )
        configure_logging(settings.log_level, settings.log_format)
        listener = stack.enter_context(listen_on_loopback(settings, "--port"))
        after = listener.getsockname()[1] + 1 if settings.port else 0
        chat = stack.enter_context(
            listen_on_loopback(settings, "--chat-port", after if chat_port is None else chat_port)
        )
        elsewhere = stack.enter_context(listen_on_loopback(settings, "--port", 0))
        stage = DemoConfig(listener, chat, elsewhere, bot, samples, data_dir is not None)
        settings = settings.model_copy(update=stage.settings_update())
        with start_target(settings) as ground:
            run_event_loop(run_demo(settings, ground, stage))


async def run_demo(settings: Settings, target: DatabaseTarget, config: DemoConfig) -> None:
    """Migrate, put everybody on, say where they are."""
    await migrate_target(settings, target)
    here, chat, elsewhere = listener_url(config.hub), listener_url(config.chat), listener_url(config.fakes)
    async with (
        open_hub(settings, target.urls) as hub,
        serve_fake_kakao(config.chat, here, has_bot=config.has_bot) as kakao,
        serve_fakes(config.fakes),
    ):
        password = await first_admin_password(hub)
        print_text(f"Chat     {chat}   (plays KakaoTalk)", "bold")
        print_text(f"Console  {here}   (sign in as admin with the password {password or 'of the first start'})")
        company = [
            watch_embedded_server(settings, target),
            *([EchoBot(here, kakao.announce_code).run()] if config.has_bot else []),
        ]
        handlers = None
        if config.has_samples:
            props = await seed_demo(hub, elsewhere + RECEIVERS_PATH)
            handlers = load_handlers(BILLING_APP)
            async with hub.transaction() as tx:
                await handlers.subscribe_services(tx)
            company += [DemoShop(here, props.secrets).run(), DemoVisitor(here, kakao).run()]
            print_text(f"Person   {here}/me?token={props.person_token}   ({MINA.name}; opens once, within 15 minutes)")
            for line in TOUR_LINES:
                print_text(line)
        print_text(f"Stop     Ctrl-C   ({'what was said is kept' if config.keeps_data else 'everything is forgotten'})")
        async with run_alongside(*company):
            await run_until_stopped(hub, config.hub, run_workers=True, handlers=handlers)


@asynccontextmanager
async def run_alongside(*coroutines: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run these as long as the rest does."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    for task in tasks:
        task.add_done_callback(log_demo_failure)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def log_demo_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        get_logger().error("character left", exc_info=error)


@contextmanager
def demo_data_dir(data_dir: Path | None) -> Generator[Path]:
    """The folder somebody chose, or one that goes with the play."""
    if data_dir is not None:
        yield data_dir.expanduser()
        return
    with tempfile.TemporaryDirectory(prefix="pabal-demo-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        folder.chmod(0o711)  # root's database runs as somebody else, who has to come through
        yield folder


def demo_settings(settings: Settings) -> Settings:
    """What nobody has chosen is as a play needs it.

    That is a terminal that stays quiet whatever goes wrong on stage, and something to read while the bot thinks.
    """
    wishes = {"log_level": "error", "waiting_text": WAITING_TEXTS[settings.chat_language]}
    return settings.model_copy(
        update={name: wish for name, wish in wishes.items() if name not in settings.model_fields_set}
    )


def listen_on_loopback(settings: Settings, option: str, port: int | None = None) -> socket.socket:
    """Take a port on loopback: a play is for one machine."""
    where = {"host": LOOPBACK, "port": settings.port if port is None else port}
    try:
        return bind_listener(settings.model_copy(update=where))
    except PortInUse:
        raise PortInUse(f"cannot listen on {LOOPBACK}:{where['port']}; choose another port with {option}") from None
