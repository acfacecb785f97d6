import asyncio

import pytest

from pabal.core.deadline import Deadline

pytestmark = pytest.mark.anyio

SHORT, LONG = 0.02, 60.0


async def wait_for_deadline(deadline: Deadline, work: asyncio.Event | None = None) -> str:
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


async def test_a_late_task_is_cancelled_and_knows_the_reason() -> None:
    assert await asyncio.create_task(wait_for_deadline(Deadline(SHORT))) == "too long, 0 left"


async def test_a_task_that_ends_in_time_is_not_cancelled_later() -> None:
    deadline, work = Deadline(SHORT), asyncio.Event()
    work.set()
    first = asyncio.create_task(wait_for_deadline(deadline, work))
    assert await first == "done"

    # The timer of the first task expires while the second waits.
    assert await asyncio.create_task(wait_for_deadline(deadline)) == "too long, 0 left"
    assert first.cancelling() == 0


async def test_each_task_has_the_whole_limit_with_a_shared_timer() -> None:
    deadline, loop = Deadline(SHORT), asyncio.get_running_loop()

    async def timed() -> float:
        started = loop.time()
        assert await wait_for_deadline(deadline) == "too long, 0 left"
        return loop.time() - started

    first = asyncio.create_task(timed())
    await asyncio.wait([first], timeout=SHORT / 2)
    second = asyncio.create_task(timed())

    assert min(await asyncio.gather(first, second)) >= SHORT - 0.002  # uvloop counts in whole milliseconds


async def test_a_cancellation_by_another_task_is_kept() -> None:
    task = asyncio.create_task(wait_for_deadline(Deadline(LONG)))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_and_a_cancellation_count_as_a_cancellation() -> None:
    """The row is lost and its handler is late: it must not be settled, so the cancellation is kept."""
    deadline, was_cancelled = Deadline(SHORT), asyncio.Event()

    async def cancel_itself() -> str:
        task = asyncio.current_task()
        assert task is not None
        deadline.set(task)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            task.cancel()  # like the worker, before the handler has ended
            assert not deadline.clear(task)
            raise
        return "settled"

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancel_itself())
    assert was_cancelled.is_set()


async def test_a_task_that_ignores_the_cancellation_is_not_cancelled_again() -> None:
    deadline = Deadline(SHORT)

    async def ignore_cancellation() -> int:
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

    assert await asyncio.create_task(ignore_cancellation()) == 0
