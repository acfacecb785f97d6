import asyncio

import pytest

from pabal.core.deadline import Deadline

pytestmark = pytest.mark.anyio

SOON, LATE = 0.02, 60.0


async def at_work(deadline: Deadline, work: asyncio.Event | None = None) -> str:
    """Work until told to stop, and say why it ended."""
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


async def test_who_takes_too_long_is_cancelled_and_knows_why() -> None:
    assert await asyncio.create_task(at_work(Deadline(SOON))) == "too long, 0 left"


async def test_who_is_done_in_time_hears_nothing_of_it_later() -> None:
    deadline, work = Deadline(SOON), asyncio.Event()
    work.set()
    first = asyncio.create_task(at_work(deadline, work))
    assert await first == "done"

    assert await asyncio.create_task(at_work(deadline)) == "too long, 0 left"  # the timer has rung meanwhile
    assert first.cancelling() == 0


async def test_each_has_the_whole_limit_though_they_share_a_timer() -> None:
    deadline, loop = Deadline(SOON), asyncio.get_running_loop()

    async def timed() -> float:
        began = loop.time()
        assert await at_work(deadline) == "too long, 0 left"
        return loop.time() - began

    first = asyncio.create_task(timed())
    await asyncio.wait([first], timeout=SOON / 2)
    second = asyncio.create_task(timed())

    assert min(await asyncio.gather(first, second)) >= SOON - 0.002  # uvloop counts in whole milliseconds


async def test_somebody_elses_cancelling_stays_theirs() -> None:
    working = asyncio.create_task(at_work(Deadline(LATE)))
    await asyncio.sleep(0)
    working.cancel()

    with pytest.raises(asyncio.CancelledError):
        await working


async def test_both_at_once_is_not_a_timeout() -> None:
    """The row is lost and its handler is late: nothing may be settled, so the cancelling goes on."""
    deadline, gone = Deadline(SOON), asyncio.Event()

    async def stubborn() -> str:
        task = asyncio.current_task()
        assert task is not None
        deadline.set(task)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            gone.set()
            task.cancel()  # as the worker would, before the handler has come to its end
            assert not deadline.clear(task)
            raise
        return "settled"

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(stubborn())
    assert gone.is_set()


async def test_who_does_not_listen_is_left_in_peace_afterwards() -> None:
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
