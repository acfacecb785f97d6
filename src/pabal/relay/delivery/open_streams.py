"""The open streams of one process, by id and by account."""

from collections import defaultdict
from collections.abc import Iterator
from uuid import UUID

from pabal.relay.delivery.stream import RelayStream


class OpenStreams:
    """An index of streams. A session's stream has no account until its first pairing."""

    def __init__(self) -> None:
        self._by_id: dict[UUID, RelayStream] = {}
        self._by_account: defaultdict[UUID, set[RelayStream]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[RelayStream]:
        """A snapshot: streams may open and close while the caller iterates."""
        return iter([*self._by_id.values()])

    def of_account(self, account: UUID | None) -> list[RelayStream]:
        return [*self._by_account.get(account, ())] if account else []

    def of_session(self, session: UUID | None) -> list[RelayStream]:
        return [stream for stream in self if stream.session_id == session] if session else []

    def add(self, stream: RelayStream) -> None:
        self._by_id[stream.id] = stream
        if stream.account_id is not None:
            self._by_account[stream.account_id].add(stream)

    def set_account(self, stream: RelayStream, account: UUID | None) -> None:
        if account is not None and stream.account_id is None:
            stream.account_id = account
            self._by_account[account].add(stream)

    def remove(self, stream: RelayStream) -> None:
        self._by_id.pop(stream.id, None)
        if stream.account_id is not None:
            self._by_account[stream.account_id].discard(stream)
            if not self._by_account[stream.account_id]:
                del self._by_account[stream.account_id]

    def close_all(self) -> None:
        """Close every stream. The clients reconnect, to this process or another."""
        for stream in self:
            stream.close()
