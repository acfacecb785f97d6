"""The rights of a service on its page."""

import pytest

from console.test_services import list_audit_entries
from pabal.hub import Hub
from support.operator import SignedInOperator
from tokens.token_operations import add_shop

pytestmark = pytest.mark.anyio


async def test_rights_are_shown_and_changed(hub: Hub, admin: SignedInOperator, viewer: SignedInOperator) -> None:
    await add_shop(hub, "shop")
    before = await viewer.get("/console/services/shop")

    response = await admin.post(
        "/console/services/shop/rights",
        permission="hub:events",
        may_publish=" order.*  refund.made ",
        may_subscribe="billing.*",
    )
    refused = await admin.post("/console/services/shop/rights", permission="read", may_publish="Order")
    without = await admin.post("/console/services/shop/rights", may_publish="order.*")
    of_hub = await admin.post("/console/services/hub/rights", permission="read")
    by_viewer = await viewer.post("/console/services/shop/rights", permission="hub:admin")
    page = await viewer.get("/console/services/shop")

    assert "All except hub events" in before.text
    assert response.status_code == 303
    assert [refused.status_code, without.status_code, of_hub.status_code, by_viewer.status_code] == [400, 400, 409, 403]
    for text in ("<code>hub:events</code>", "<code>order.*</code> <code>refund.made</code>", "<code>billing.*</code>"):
        assert text in page.text
    assert "<form" not in page.text.partition('id="event-types"')[2].partition('aria-labelledby="secrets"')[0]
    assert await list_audit_entries(hub) == ["service.rights_changed"]
