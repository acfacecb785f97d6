"""The client and the hub are installed from this repository into empty environments."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

import pabal.client
import pabal_client
from relay.skills import send_message
from support.empty_environment import CLIENT, ROOT, build_wheel, create_environment, dependency_names, run
from support.fake_kakao import run_fake_kakao
from support.wait import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

README = CLIENT / "README.md"
BOT = re.compile(r"^```python\n(import os\n.*?)^```$", re.DOTALL | re.MULTILINE)
MAX_BOT_LINES = 15


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(CLIENT, tmp_path_factory.mktemp("wheels") / "client")


@asynccontextmanager
async def running_bot(python: Path, folder: Path, url: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The bot of the README in a process of its own, stopped as a service manager stops it."""
    environment = {"PATH": os.environ["PATH"], "PABAL_URL": url, "PYTHONDONTWRITEBYTECODE": "1"}
    process = await asyncio.create_subprocess_exec(
        python, "bot.py", cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def test_the_bot_of_the_readme_runs_with_nothing_but_the_client(
    web: httpx2.AsyncClient, client_wheel: Path, tmp_path: Path
) -> None:
    dependencies = dependency_names("pabal-client")
    programs = create_environment(tmp_path / "environment", [client_wheel], dependencies)
    [source] = BOT.findall(README.read_text())
    (tmp_path / "bot.py").write_text(source)

    async with run_fake_kakao() as kakao, running_bot(programs / "python", tmp_path, str(web.base_url)) as process:
        assert process.stdout
        printed = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        await send_message(web, re.sub(r".*(/pair \S+)\n", r"\1", printed), "mina")
        await send_message(web, "안녕", "mina", callbackUrl=kakao.url("hello"))
        await wait_until(lambda: bool(kakao.texts("hello")))

    assert process.returncode == 0
    assert kakao.texts("hello") == [["You said: 안녕"]]
    assert (tmp_path / "bot.token").stat().st_mode & 0o077 == 0
    assert len(source.splitlines()) <= MAX_BOT_LINES
    assert dependencies >= {"httpx2", "msgspec"}
    assert len(dependencies) < 10


def test_the_hub_runs_with_the_wheel_of_the_client(client_wheel: Path, tmp_path: Path) -> None:
    hub_wheel = build_wheel(ROOT, tmp_path / "hub")
    dependencies = dependency_names("pabal", without=frozenset({"pabal-client"}))
    programs = create_environment(tmp_path / "environment", [client_wheel, hub_wheel], dependencies)

    version = run(str(programs / "pabal"), "version", cwd=tmp_path)
    program = "import pabal.client, pabal_client as c; print(pabal.client.Client is c.Client, c.__file__)"
    same, path = run(str(programs / "python"), "-c", program, cwd=tmp_path).split()

    assert pabal.__version__ in version
    assert same == "True"
    assert Path(path).is_relative_to(tmp_path)
    assert len(dependencies) > 30


def test_the_former_name_of_the_client_has_the_same_objects() -> None:
    names = pabal_client.__all__

    assert pabal.client.__all__ == names
    assert [name for name in names if getattr(pabal.client, name) is not getattr(pabal_client, name)] == []
