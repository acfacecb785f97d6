import pytest

from ledger import Ledger
from pabal.wiring import Hub, Roads


@pytest.fixture
def ledger(hub: Hub, roads: Roads) -> Ledger:
    return Ledger(hub, roads, hub.keys)
