"""Open streams: the streams that clients hold open in one process, by key."""

from collections.abc import Iterator, KeysView
from typing import Generic, Protocol, TypeVar


class ClosableStream(Protocol):
    def close(self) -> None: ...


StreamKey = TypeVar("StreamKey")
StreamType = TypeVar("StreamType", bound=ClosableStream)


class OpenStreams(Generic[StreamKey, StreamType]):
    """An index of open streams. Adding a stream again changes its key; a stream without one is found by iteration."""

    def __init__(self) -> None:
        self._keys: dict[StreamType, StreamKey | None] = {}
        self._by_key: dict[StreamKey, set[StreamType]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[StreamType]:
        """A snapshot: streams may open and close while the caller iterates."""
        return iter([*self._keys])

    def __contains__(self, stream: StreamType) -> bool:
        return stream in self._keys

    def keys(self) -> KeysView[StreamKey]:
        return self._by_key.keys()

    def of_key(self, key: StreamKey | None) -> list[StreamType]:
        return [*self._by_key.get(key, ())] if key is not None else []

    def add(self, stream: StreamType, key: StreamKey | None) -> None:
        self.remove(stream)
        self._keys[stream] = key
        if key is not None:
            self._by_key.setdefault(key, set()).add(stream)

    def remove(self, stream: StreamType) -> None:
        key = self._keys.pop(stream, None)
        if key is None:
            return
        self._by_key[key].discard(stream)
        if not self._by_key[key]:
            del self._by_key[key]

    def close_all(self) -> None:
        """Close every stream. The clients reconnect, to this process or another."""
        for stream in self:
            stream.close()
