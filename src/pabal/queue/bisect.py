"""Isolate the rows that make a batch fail, so that one bad row does not fail the others."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

BisectItem = TypeVar("BisectItem")
BisectResult = TypeVar("BisectResult")
BisectError = TypeVar("BisectError", bound=Exception)


async def bisect_failures(
    batch: Sequence[BisectItem],
    write: Callable[[Sequence[BisectItem]], Awaitable[Sequence[BisectResult]]],
    fail: Callable[[BisectItem, BisectError], BisectResult],
    on: tuple[type[BisectError], ...],
    unless: tuple[type[Exception], ...] = (),
) -> list[BisectResult]:
    """Write a batch and return one result per item, in order.

    If `write` raises one of `on`, halve the batch until each bad item is alone; `fail` turns it into its result.
    Errors in `unless` concern the whole batch and are raised.
    """
    try:
        return [*await write(batch)]
    except unless:
        raise
    except on as error:
        if len(batch) == 1:
            return [fail(batch[0], error)]
    middle = len(batch) // 2
    return [
        *await bisect_failures(batch[:middle], write, fail, on, unless),
        *await bisect_failures(batch[middle:], write, fail, on, unless),
    ]
