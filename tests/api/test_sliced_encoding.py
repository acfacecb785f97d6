"""Long lists are encoded in slices: the same JSON, with turns for other tasks in between."""

import asyncio
from typing import Any

import msgspec
import pytest

from pabal.web.route import ResponseBody
from pabal.web.sliced_encoding import SLICE_BYTES, encode_in_slices, find_list_field

pytestmark = pytest.mark.anyio


class ParcelPage(ResponseBody, frozen=True, rename="camel"):
    all_parcels: list[dict[str, Any]]
    cursor: str | None = None


class ParcelCount(ResponseBody, frozen=True):
    count: int
    parcels: list[int]


@pytest.mark.parametrize("count", [0, 1, 8, 9, 16, 17, 100])
async def test_the_encoding_is_the_same(count: int) -> None:
    page = ParcelPage([{"text": '"[]"', "n": number} for number in range(count)], '"allParcels":[]')

    assert await encode_in_slices(page, "all_parcels") == msgspec.json.encode(page)


def test_only_a_response_that_begins_with_a_list_is_sliced() -> None:
    assert [find_list_field(kind) for kind in (ParcelPage, ParcelCount, dict, None)] == [
        "all_parcels",
        None,
        None,
        None,
    ]


async def test_other_tasks_run_between_slices() -> None:
    page = ParcelPage([{"text": "x" * (SLICE_BYTES // 4)} for _ in range(64)])
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count_turns())
    await encode_in_slices(page, "all_parcels")
    task.cancel()

    assert turns >= 8
