"""Each lane in turn, on its own database."""

from typing import Any

import asyncpg
import pytest

from pabal.hub import Hub
from support.lane_under_test import LANES, LaneUnderTest, Travel


@pytest.fixture
async def owner(hub: Hub, database_urls: Any) -> Any:
    connection = await asyncpg.connect(database_urls.direct)
    yield connection
    connection.terminate()


@pytest.fixture(params=LANES, ids=lambda kind: kind.__name__.lower())
async def lane(
    request: pytest.FixtureRequest, hub: Hub, owner: "asyncpg.Connection[asyncpg.Record]", travel: Travel
) -> LaneUnderTest:
    """Each lane in turn; a test is skipped on lanes without a capability it `needs`."""
    under_test: LaneUnderTest = request.param(hub, owner, travel)
    await under_test.prepare()
    return under_test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep only the pairs of test and lane where the lane has the capabilities the test needs."""
    for item in [*items]:
        needs = item.get_closest_marker("needs")
        kind = getattr(item, "callspec", None) and item.callspec.params.get("lane")  # pyright: ignore[reportAttributeAccessIssue]
        if needs and kind and not set(needs.args) <= kind.lane.capabilities:
            items.remove(item)
