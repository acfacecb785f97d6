"""The watchdog measures how late the event loop runs and names what blocks it."""

import asyncio
import threading
import time

import pytest
from structlog.testing import capture_logs

from pabal.core import loop_watchdog
from pabal.core.loop_watchdog import MAX_LAG, MAX_STACK_LENGTH, format_loop_stack, watched_event_loop
from pabal.core.metrics import Metrics
from support.wait import wait_until

pytestmark = pytest.mark.anyio

BLOCK = 2 * MAX_LAG


def block_the_loop(password: str) -> None:
    """Block as a slow function does; `password` must not be logged."""
    time.sleep(BLOCK)
    assert password


async def test_a_blocking_call_is_logged_once_with_its_stack() -> None:
    lags: list[float] = []
    with capture_logs() as lines:
        async with watched_event_loop(lags.append):
            block_the_loop("correct horse")
            await wait_until(lambda: bool(lines))
            block_the_loop("correct horse")
            await wait_until(lambda: max(lags[-1:]) < MAX_LAG and len([lag for lag in lags if lag > MAX_LAG]) == 2)

    [line] = lines
    assert line["event"] == "event loop blocked"
    assert line["log_level"] == "warning"
    assert line["seconds"] >= MAX_LAG
    assert line["stack"].startswith(f"{__name__}.block_the_loop:")
    assert "test_a_blocking_call_is_logged_once" in line["stack"]
    assert "correct horse" not in str(line)


async def test_blocks_that_were_not_logged_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as lines:
        async with watched_event_loop(lambda _: None) as watchdog:
            block_the_loop("first")
            await wait_until(lambda: len(lines) == 1)
            block_the_loop("second")
            await wait_until(lambda: watchdog.unreported == 1)
            monkeypatch.setattr(loop_watchdog, "LOG_INTERVAL", 0.0)
            block_the_loop("third")
            await wait_until(lambda: len(lines) == 2)

    assert [line["earlier"] for line in lines] == [0, 1]


async def test_a_block_that_does_not_end_is_logged_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watchdog, "REPORT_AFTER", MAX_LAG)
    with capture_logs() as lines:
        async with watched_event_loop(lambda _: None):
            deadline = time.monotonic() + 10
            while not lines and time.monotonic() < deadline:
                time.sleep(0.01)  # noqa: ASYNC251 the loop stays blocked

    assert len(lines) == 1


async def test_a_loop_that_only_waits_is_not_logged() -> None:
    """A busy machine delays the loop as well, but no function of ours is at fault."""
    idle = threading.Event()
    frames: list[str] = []

    def run_idle_loop() -> None:
        loop = asyncio.new_event_loop()
        loop.call_soon(idle.set)
        loop.call_later(0.2, loop.stop)
        loop.run_forever()
        loop.close()

    thread = threading.Thread(target=run_idle_loop)
    thread.start()
    assert thread.ident
    idle.wait()
    while thread.is_alive():
        frames.append(loop_watchdog.sample_stack(thread.ident))
        await asyncio.sleep(0)
    thread.join()

    assert frames.count("") > len(frames) // 2


def test_a_stack_is_short() -> None:
    def recurse(depth: int) -> str:
        return recurse(depth - 1) if depth else loop_watchdog.sample_stack(threading.get_ident())

    assert len(recurse(200)) <= MAX_STACK_LENGTH
    assert format_loop_stack(None) == ""


async def test_the_lag_is_a_metric_in_seconds() -> None:
    metrics = Metrics("test")
    async with watched_event_loop(metrics.observe_loop_lag):
        await wait_until(lambda: b"pabal_event_loop_lag_seconds_count 0.0" not in metrics.render())
    text = metrics.render().decode()
    metrics.close()

    assert 'pabal_event_loop_lag_seconds_bucket{le="0.25"}' in text
