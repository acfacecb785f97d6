import pytest

from pabal.hub import DatabaseUrls, Hub
from support.audit_log import Ledger


@pytest.fixture
def ledger(hub: Hub, database_urls: DatabaseUrls) -> Ledger:
    return Ledger(hub, database_urls, hub.key_ring)
