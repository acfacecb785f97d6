"""`pabal demo`: a hub on loopback with a simulated Kakao, Discord, bot and shop."""

import asyncio
import secrets
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import SecretStr

from pabal.cli.database_settings import database_settings
from pabal.cli.events.handlers_app import load_handlers
from pabal.cli.hub.migrate import migrate_target
from pabal.cli.hub.run import run_until_stopped
from pabal.cli.hub.serve import run_event_loop, watch_embedded_server
from pabal.cli.hub.start import first_admin_password
from pabal.cli.options import Port
from pabal.cli.output import print_text
from pabal.cli.processes.listener import bind_listener
from pabal.cli.target import DatabaseTarget, start_target
from pabal.core.errors import PortInUse
from pabal.core.log import configure_logging, get_logger
from pabal.demo.bot import EchoBot
from pabal.demo.dashboard import dashboard_routes
from pabal.demo.discord import DEMO_DISCORD_TOKEN
from pabal.demo.run import (
    DASHBOARD_PATH,
    DISCORD_PATH,
    RECEIVERS_PATH,
    DemoVisitor,
    listener_url,
    serve_fake_kakao,
    serve_fakes,
)
from pabal.demo.seed_data import MINA, OPERATORS_CHANNEL, issue_demo_token, seed_demo
from pabal.demo.shop import DemoShop
from pabal.hub import open_hub
from pabal.settings import Settings, load_settings

LOOPBACK = "127.0.0.1"
BILLING_APP = "pabal.demo.billing:hub"

ChatPort = Annotated[int | None, Parameter(help="Port of the chat page. Default: the hub's port + 1.")]
DemoDataDir = Annotated[Path | None, Parameter(help="Keep the data in this directory. Default: delete it at the end.")]
BotOption = Annotated[bool, Parameter(help="Run the demo bot. Without it, connect your own plugin.")]
SamplesOption = Annotated[bool, Parameter(help="Simulate a shop with services, receivers and customers.")]
ChatLanguageOption = Annotated[
    Literal["ko", "en"] | None, Parameter(help="Language of the hub's own chat texts. [PABAL_CHAT_LANGUAGE]")
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
"""Settings that the demo ignores, so that it never touches a real database or uses real keys."""
TOUR_LINES = (
    "See      Events: a shop's orders   Dead letters: failed deliveries   Services: one paused, one disabled",
    "         Notifications: sent, refused, suppressed, scheduled   Relay: a customer who chats with a bot",
)
WAITING_TEXTS = {"ko": "생각하고 있어요…", "en": "Thinking…"}


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """The sockets of the demo and the parts to run."""

    hub: socket.socket
    chat: socket.socket
    fakes: socket.socket
    has_bot: bool
    has_samples: bool
    keeps_data: bool

    def settings_update(self) -> dict[str, Any]:
        """The settings that point the hub at the simulated servers."""
        fakes_url = listener_url(self.fakes)
        update: dict[str, Any] = {"host": LOOPBACK, "port": self.hub.getsockname()[1]}
        update |= {"webhook_secret": SecretStr(secrets.token_urlsafe(32)), "webhook_open": False}
        update |= {"callback_allow": [listener_url(self.chat), fakes_url]}
        update |= {"discord_dry_run": not self.has_samples}
        if self.has_samples:
            update |= {"discord_token": SecretStr(DEMO_DISCORD_TOKEN), "discord_api_url": fakes_url + DISCORD_PATH}
            update |= {"operator_channel": OPERATORS_CHANNEL, "allowed_origins": [fakes_url]}
        return update


def demo_command(
    *,
    port: Port = None,
    chat_port: ChatPort = None,
    data_dir: DemoDataDir = None,
    bot: BotOption = True,
    samples: SamplesOption = True,
    language: ChatLanguageOption = None,
) -> None:
    """Try the hub with a simulated chat, bot and shop.

    The chat simulates KakaoTalk, the bot answers every message, and the shop publishes events.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # during the start, SIGTERM stops it as Ctrl-C does
    with demo_data_dir(data_dir) as folder, ExitStack() as stack:
        settings = demo_settings(load_settings(port=port, chat_language=language)).model_copy(
            update={**RESET_SETTINGS, "data_dir": folder}
        )
        configure_logging(settings.log_level, settings.log_format)
        hub_socket = stack.enter_context(listen_on_loopback(settings, "--port"))
        next_port = hub_socket.getsockname()[1] + 1 if settings.port else 0
        chat_socket = stack.enter_context(
            listen_on_loopback(settings, "--chat-port", next_port if chat_port is None else chat_port)
        )
        fakes_socket = stack.enter_context(listen_on_loopback(settings, "--port", 0))
        config = DemoConfig(hub_socket, chat_socket, fakes_socket, bot, samples, data_dir is not None)
        settings = settings.model_copy(update=config.settings_update())
        with start_target(database_settings(settings)) as target:
            run_event_loop(run_demo(settings, target, config))


async def run_demo(settings: Settings, target: DatabaseTarget, config: DemoConfig) -> None:
    """Migrate, start the simulated servers, seed the sample data, print the addresses, serve until stopped."""
    await migrate_target(settings, target)
    hub_url, chat_url, fakes_url = listener_url(config.hub), listener_url(config.chat), listener_url(config.fakes)
    async with (
        open_hub(settings, target.urls) as hub,
        serve_fake_kakao(config.chat, hub_url, skill_headers(settings), has_bot=config.has_bot) as kakao,
        serve_fakes(config.fakes, dashboard_routes(hub_url, MINA.name, partial(issue_demo_token, hub))),
    ):
        password = await first_admin_password(hub.db, settings)
        print_text(f"Chat     {chat_url}   (simulates KakaoTalk)", "bold")
        print_text(f"Console  {hub_url}   (sign in as admin with the password {password or 'of the first start'})")
        background = [
            watch_embedded_server(settings, target),
            *([EchoBot(hub_url, kakao.announce_code).run()] if config.has_bot else []),
        ]
        handlers = None
        if config.has_samples:
            sample = await seed_demo(hub, fakes_url + RECEIVERS_PATH)
            handlers = load_handlers(BILLING_APP)
            async with hub.transaction() as tx:
                await handlers.subscribe_services(tx)
            background += [DemoShop(hub_url, sample.secrets).run(), DemoVisitor(hub_url, kakao).run()]
            print_text(f"Person   {hub_url}/me?token={sample.person_token}   ({MINA.name}; valid once, for 15 minutes)")
            print_text(f"Shop     {fakes_url}{DASHBOARD_PATH}/   (a page of another origin, with {MINA.name}'s toasts)")
            for line in TOUR_LINES:
                print_text(line)
        print_text(f"Stop     Ctrl-C   ({'the data is kept' if config.keeps_data else 'the data is deleted'})")
        async with run_alongside(*background):
            await run_until_stopped(hub, config.hub, run_workers=True, handlers=handlers)


def skill_headers(settings: Settings) -> dict[str, str]:
    """What the operator would enter in Kakao's skill settings."""
    return {settings.webhook_header: secret.get_secret_value()} if (secret := settings.webhook_secret) else {}


@asynccontextmanager
async def run_alongside(*coroutines: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run these until the block ends."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
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
        get_logger().error("demo task failed", exc_info=error)


@contextmanager
def demo_data_dir(data_dir: Path | None) -> Generator[Path]:
    """Yield the chosen directory, or a temporary one that is deleted at the end."""
    if data_dir is not None:
        yield data_dir.expanduser()
        return
    with tempfile.TemporaryDirectory(prefix="pabal-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # as root, the database runs as another user, who needs to enter it
        yield folder


def demo_settings(settings: Settings) -> Settings:
    """Apply the demo's defaults where the user set nothing: a quiet log, and a text while the bot thinks."""
    defaults = {"log_level": "error", "waiting_text": WAITING_TEXTS[settings.chat_language]}
    return settings.model_copy(
        update={name: value for name, value in defaults.items() if name not in settings.model_fields_set}
    )


def listen_on_loopback(settings: Settings, option: str, port: int | None = None) -> socket.socket:
    """Bind a port on loopback only."""
    chosen_port = settings.port if port is None else port
    try:
        return bind_listener(LOOPBACK, chosen_port)
    except PortInUse:
        raise PortInUse(f"Cannot listen on {LOOPBACK}:{chosen_port}. Choose another port with {option}") from None
