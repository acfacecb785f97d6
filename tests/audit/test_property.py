"""In every order of concurrent transactions, the chain is valid at every moment."""

from contextlib import AbstractAsyncContextManager

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.core.errors import Conflict
from pabal.db.tx import Tx
from support.audit_log import Ledger

pytestmark = pytest.mark.anyio

OPEN = 4
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "write", "write", "commit", "abort"]), st.integers(0, OPEN - 1)),
        st.tuples(st.just("seal"), st.integers(1, 4)),
    ),
    max_size=40,
)


class Writers:
    """Several concurrent transactions, each open from its first row until it ends."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._open: dict[int, tuple[AbstractAsyncContextManager[Tx], Tx]] = {}

    async def write(self, who: int) -> None:
        if who not in self._open:
            work = self._ledger.hub.transaction()
            self._open[who] = work, await work.__aenter__()
        await record_audit_entry(
            self._open[who][1], AuditEntry(f"writer {who}", "something.done", details={"who": who})
        )

    async def commit(self, who: int) -> None:
        if held := self._open.pop(who, None):
            await held[0].__aexit__(None, None, None)

    async def abort(self, who: int) -> None:
        if held := self._open.pop(who, None):
            error = Conflict("changed my mind")
            await held[0].__aexit__(Conflict, error, None)


@given(steps=STEPS)
@trying(max_examples=40, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_every_committed_row_is_sealed_once_and_the_chain_never_breaks(
    ledger: Ledger, steps: list[tuple[str, int]]
) -> None:
    writers = Writers(ledger)
    for step, number in steps:
        match step:
            case "write":
                await writers.write(number)
            case "commit":
                await writers.commit(number)
            case "abort":
                await writers.abort(number)
            case _:
                await ledger.seal(batch=number)
                assert await ledger.breaks() == []
    for who in range(OPEN):
        await writers.commit(who)
    await ledger.chain(1)

    assert await ledger.named() == await ledger.rows()
    verdict = await ledger.verify()
    assert (verdict.rows, verdict.unsealed, verdict.broken) == (len(await ledger.rows()), 0, 0)
