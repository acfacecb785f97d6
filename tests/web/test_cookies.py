"""Cookies are read in linear time, and only ours."""

import time

import httpx2
import pytest
from starlette.requests import Request

from pabal.console.access.login import OPERATOR_COOKIE
from pabal.web.auth import PERSON_COOKIE
from pabal.web.cookies import MAX_COOKIE_LENGTH, read_cookie
from support.raw_http import exchange, get, statuses

pytestmark = pytest.mark.anyio

MAX_CPU_SECONDS = 0.25
"""The standard library's parser takes seconds before Python 3.11.10."""


def request_with(*headers: str) -> Request:
    return Request({"type": "http", "headers": [(b"cookie", header.encode()) for header in headers]})


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        (["name=value"], "value"),
        (["other=1; name=value; more=2"], "value"),
        (["other=1;name=value"], "value"),
        (["other=1", "name=value"], "value"),
        (["name=first; name=last"], "last"),
        (['name="quoted"'], "quoted"),
        (["name=a=b=="], "a=b=="),
        (["name="], ""),
        (["name"], ""),
        (["xname=value"], ""),
        (["NAME=value"], ""),
        ([], ""),
        ([f"name={'a' * MAX_COOKIE_LENGTH}"], "a" * MAX_COOKIE_LENGTH),
        ([f"name={'a' * (MAX_COOKIE_LENGTH + 1)}"], ""),
    ],
)
def test_a_cookie_is_read_by_its_name(headers: list[str], value: str) -> None:
    assert read_cookie(request_with(*headers), "name") == value


@pytest.mark.parametrize("path", ["/console", "/portal", "/chat", "/me", "/v1/toasts"])
@pytest.mark.parametrize(
    "cookie",
    [
        f'{OPERATOR_COOKIE}="' + "\\" * 15_000,
        f'{PERSON_COOKIE}="' + "\\1" * 7_500 + '"',
        ";" * 15_000,
        "a=" * 7_500,
        f"{OPERATOR_COOKIE}=a;" * 1_000,
    ],
    ids=["backslashes", "octal", "separators", "equal signs", "repeated"],
)
async def test_a_hostile_cookie_costs_little(web: httpx2.AsyncClient, path: str, cookie: str) -> None:
    assert web.base_url.port
    await web.get(path)  # templates are compiled once
    started = time.thread_time()
    response = await exchange(web.base_url.port, get(path, f"cookie: {cookie}", "connection: close"))

    assert [status for status in statuses(response) if status >= 500] == []
    assert statuses(response)
    assert time.thread_time() - started < MAX_CPU_SECONDS
