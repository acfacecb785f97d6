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

MAX_OPEN = 4
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "write", "write", "commit", "abort"]), st.integers(0, MAX_OPEN - 1)),
        st.tuples(st.just("seal"), st.integers(1, 4)),
    ),
    max_size=40,
)


class Writers:
    """Several concurrent transactions, each open from its first row until it ends."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._open: dict[int, tuple[AbstractAsyncContextManager[Tx], Tx]] = {}

    async def write(self, writer: int) -> None:
        if writer not in self._open:
            transaction = self._ledger.hub.transaction()
            self._open[writer] = transaction, await transaction.__aenter__()
        await record_audit_entry(
            self._open[writer][1], AuditEntry(f"writer {writer}", "something.done", details={"writer": writer})
        )

    async def commit(self, writer: int) -> None:
        if opened := self._open.pop(writer, None):
            await opened[0].__aexit__(None, None, None)

    async def abort(self, writer: int) -> None:
        if opened := self._open.pop(writer, None):
            error = Conflict("aborted")
            await opened[0].__aexit__(Conflict, error, None)


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
    for writer in range(MAX_OPEN):
        await writers.commit(writer)
    await ledger.chain(1)

    assert await ledger.named() == await ledger.rows()
    report = await ledger.verify()
    assert (report.rows, report.unsealed, report.broken) == (len(await ledger.rows()), 0, 0)
