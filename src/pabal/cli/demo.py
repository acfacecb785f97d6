"""`pabal demo`: a hub with everybody it needs, played on loopback."""

import asyncio
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from pabal.cli import screen
from pabal.cli.migrate import bring_up
from pabal.cli.options import Port
from pabal.cli.roads import Ground, started
from pabal.cli.up import first_password, keep, listen, run, run_until_stopped
from pabal.core import log
from pabal.core.errors import PortTaken
from pabal.demo.bot import EchoBot
from pabal.demo.stage import address_of, kakao_at
from pabal.settings import Settings, read
from pabal.wiring import open_hub

LOOPBACK = "127.0.0.1"

ChatPort = Annotated[int | None, Parameter(help="Port of the chat page. Default: the one after the hub's.")]
Folder = Annotated[Path | None, Parameter(help="Where to keep what was said. Default: nowhere, it is forgotten.")]
Bot = Annotated[bool, Parameter(help="Play the bot too; without it, connect a plugin of your own.")]
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
    )
)
"""What a real hub may have been told here is not for a play: nobody's database is touched, nobody's keys are used."""
WAITING = {"ko": "생각하고 있어요…", "en": "Thinking…"}


def demo(
    *,
    port: Port = None,
    chat_port: ChatPort = None,
    data_dir: Folder = None,
    bot: Bot = True,
    language: Language = None,
) -> None:
    """Try the relay without Kakao: a hub, a chat page that plays KakaoTalk, and a bot that answers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to stop while starting, it stops as by Ctrl-C
    with folder_of(data_dir) as folder:
        settings = as_played(read(port=port, chat_language=language)).model_copy(update={**ALONE, "data_dir": folder})
        log.configure(settings.log_level, settings.log_format)
        with taking(settings, "--port") as listener:
            taken: int = listener.getsockname()[1]
            after = taken + 1 if settings.port else 0
            with taking(settings, "--chat-port", after if chat_port is None else chat_port) as chat:
                known = {"host": LOOPBACK, "port": taken, "callback_allow": [address_of(chat)]}
                settings = settings.model_copy(update=known)
                with started(settings) as ground:
                    run(play(settings, ground, listener, chat, has_bot=bot, is_kept=data_dir is not None))


async def play(
    settings: Settings, ground: Ground, listener: socket.socket, chat: socket.socket, *, has_bot: bool, is_kept: bool
) -> None:
    """Migrate, put everybody on, say where they are."""
    await bring_up(settings, ground)
    async with open_hub(settings, ground.roads) as hub:
        password = await first_password(hub)
        here = address_of(listener)
        async with kakao_at(chat, here, has_bot=has_bot) as kakao:
            screen.say(f"Chat     {address_of(chat)}   (plays KakaoTalk)", "bold")
            screen.say(f"Console  {here}   (sign in as admin with the password {password or 'of the first start'})")
            screen.say(f"Stop     Ctrl-C   ({'what was said is kept' if is_kept else 'everything is forgotten'})")
            company = [keep(settings, ground), *([EchoBot(here, kakao.announce).run()] if has_bot else [])]
            async with beside(*company):
                await run_until_stopped(hub, listener, works=True)


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
    """What nobody has chosen is as a play needs it: a quiet terminal, and something to read while the bot thinks."""
    wishes = {"log_level": "warning", "waiting_text": WAITING[settings.chat_language]}
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
