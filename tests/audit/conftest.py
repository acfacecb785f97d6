import pytest

from ledger import Ledger
from pabal.hub import DatabaseUrls, Hub


@pytest.fixture
def ledger(hub: Hub, roads: DatabaseUrls) -> Ledger:
    return Ledger(hub, roads, hub.key_ring)
