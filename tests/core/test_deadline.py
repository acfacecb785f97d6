import asyncio

import pytest

from pabal.core.deadline import Deadline

pytestmark = pytest.mark.anyio

SOON, LATE = 0.02, 60.0


async def at_work(deadline: Deadline, work: asyncio.Event | None = None) -> str:
    """Wait until cancelled; returns why it ended."""
    task = asyncio.current_task()
    assert task is not None
    deadline.set(task)
    try:
        await (work or asyncio.Event()).wait()
    except asyncio.CancelledError:
        if deadline.clear(task):
            return f"too long, {task.cancelling()} left"
        raise
    finally:
        deadline.clear(task)
    return "done"


async def test_a_late_task_is_cancelled_and_can_tell_why() -> None:
    assert await asyncio.create_task(at_work(Deadline(SOON))) == "too long, 0 left"


async def test_a_task_that_ends_in_time_is_not_cancelled_later() -> None:
    deadline, work = Deadline(SOON), asyncio.Event()
    work.set()
    first = asyncio.create_task(at_work(deadline, work))
    assert await first == "done"

    assert await asyncio.create_task(at_work(deadline)) == "too long, 0 left"  # the timer has expired in the meantime
    assert first.cancelling() == 0


async def test_each_task_has_the_whole_limit_with_a_shared_timer() -> None:
    deadline, loop = Deadline(SOON), asyncio.get_running_loop()

    async def timed() -> float:
        began = loop.time()
        assert await at_work(deadline) == "too long, 0 left"
        return loop.time() - began

    first = asyncio.create_task(timed())
    await asyncio.wait([first], timeout=SOON / 2)
    second = asyncio.create_task(timed())

    assert min(await asyncio.gather(first, second)) >= SOON - 0.002  # uvloop counts in whole milliseconds


async def test_a_cancellation_by_another_task_is_kept() -> None:
    working = asyncio.create_task(at_work(Deadline(LATE)))
    await asyncio.sleep(0)
    working.cancel()

    with pytest.raises(asyncio.CancelledError):
        await working


async def test_a_timeout_and_a_cancellation_count_as_a_cancellation() -> None:
    """The row is lost and its handler is late: it must not be settled, so the cancellation is kept."""
    deadline, gone = Deadline(SOON), asyncio.Event()

    async def stubborn() -> str:
        task = asyncio.current_task()
        assert task is not None
        deadline.set(task)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            gone.set()
            task.cancel()  # like the worker, before the handler has ended
            assert not deadline.clear(task)
            raise
        return "settled"

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(stubborn())
    assert gone.is_set()


async def test_a_task_that_ignores_the_cancellation_is_not_cancelled_again() -> None:
    deadline = Deadline(SOON)

    async def deaf() -> int:
        task = asyncio.current_task()
        assert task is not None
        deadline.set(task)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        finally:
            deadline.clear(task)
        await asyncio.sleep(0)
        return task.cancelling()

    assert await asyncio.create_task(deaf()) == 0
