import pytest

from pabal.hub import DatabaseUrls, Hub
from support.audit_log import AuditLog


@pytest.fixture
def audit_log(hub: Hub, database_urls: DatabaseUrls) -> AuditLog:
    return AuditLog(hub, database_urls, hub.key_ring)
