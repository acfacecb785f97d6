"""The sync and the async client have the same methods with the same parameters."""

import inspect
import re
from typing import Any

import pytest

from pabal_client import App, AsyncBuffer, AsyncClient, Buffer, Client

PAIRS: list[tuple[type, type]] = [(Client, AsyncClient), (Buffer, AsyncBuffer)]
SYNC_NAMES = {
    "asyncio.locks.Event": "threading.Event",
    "asyncio.Future": "Future",
    "pabal_client.batching.AsyncBuffer": "pabal_client.batching.Buffer",
}
"""Types of the standard library and of the client that have a sync and an async form."""


def public_methods(client: type) -> dict[str, Any]:
    return {name: method for name, method in vars(client).items() if callable(method) and not name.startswith("_")}


def signature_text(method: Any) -> str:
    text = str(inspect.signature(method))
    for name, sync_name in SYNC_NAMES.items():
        text = text.replace(name, sync_name)
    return re.sub(r"['\"]", "", text)


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda client: client.__name__)
def test_both_clients_have_the_same_methods(sync: type, asynchronous: type) -> None:
    sync_methods, async_methods = public_methods(sync), public_methods(asynchronous)

    assert sync_methods.keys() == async_methods.keys()
    assert {name: signature_text(method) for name, method in sync_methods.items()} == {
        name: signature_text(method) for name, method in async_methods.items()
    }
    assert str(inspect.signature(sync.__init__)) == str(inspect.signature(asynchronous.__init__)) or sync is Buffer


def test_all_methods_of_the_async_client_are_coroutines_and_those_of_the_sync_one_are_not() -> None:
    names = public_methods(Client).keys() - {"buffer"}

    assert len(names) > 20
    assert [name for name in names if not inspect.iscoroutinefunction(getattr(AsyncClient, name))] == []
    assert [name for name in names if inspect.iscoroutinefunction(getattr(Client, name))] == []


@pytest.mark.parametrize("name", ["publish", "notify"])
def test_an_app_has_the_same_parameters_for_sync_and_async_connections(name: str) -> None:
    assert inspect.signature(getattr(App, name)) == inspect.signature(getattr(App, f"{name}_sync"))


def test_the_target_of_an_event_has_one_name() -> None:
    names = {
        str(parameter.annotation)
        for method in (Client.publish, AsyncClient.publish, Buffer.publish, AsyncBuffer.publish, App.publish)
        for parameter in inspect.signature(method).parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD
    }

    assert len(names) == 1
    assert "PublishOptions" in names.pop()
