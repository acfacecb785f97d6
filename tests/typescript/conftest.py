"""Fixtures of the tests of the TypeScript client."""

import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
