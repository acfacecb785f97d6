"""The index of open streams."""

from dataclasses import dataclass

from pabal.queue.open_streams import OpenStreams


@dataclass(eq=False)
class Stream:
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


def test_streams_are_found_by_key_until_they_are_removed() -> None:
    streams, first, second = OpenStreams[str, Stream](), Stream(), Stream()
    streams.add(first, "a")
    streams.add(second, "a")

    streams.remove(first)
    streams.remove(first)

    assert (len(streams), streams.of_key("a"), {*streams.keys()}) == (1, [second], {"a"})
    streams.remove(second)
    assert (len(streams), streams.of_key("a"), {*streams.keys()}) == (0, [], set())


def test_a_stream_gets_its_key_later_or_another_one() -> None:
    streams, stream = OpenStreams[str, Stream](), Stream()
    streams.add(stream, None)
    assert (streams.of_key(None), [*streams]) == ([], [stream])

    for key in ("a", "b"):
        streams.add(stream, key)

        assert (len(streams), streams.of_key(key), {*streams.keys()}) == (1, [stream], {key})


def test_all_streams_are_closed_even_if_closing_removes_them() -> None:
    streams = OpenStreams[str, Stream]()

    class Removing(Stream):
        def close(self) -> None:
            super().close()
            streams.remove(self)

    opened = [Removing() for _ in range(3)]
    for stream in opened:
        streams.add(stream, "a")

    streams.close_all()

    assert all(stream.is_closed for stream in opened)
    assert not streams
