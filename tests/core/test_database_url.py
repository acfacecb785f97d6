"""The forms of a database URL."""

from datetime import timedelta

import pytest

from pabal.core.database_url import DatabaseHost, parse_database_url

H1, H2 = DatabaseHost("h1", 5432), DatabaseHost("h2", 5433)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://u:p@h1/db", (H1,)),
        ("postgresql://u:p@h1:5432,h2:5433/db?target_session_attrs=read-write", (H1, H2)),
        ("postgres://u:p@/db?host=h1,h2&port=5432,5433", (H1, H2)),
        ("postgresql:///db?host=h1,h2", (H1, DatabaseHost("h2"))),
        ("postgresql://u:p@h1,[fd00::1]:5433/db", (H1, DatabaseHost("fd00::1", 5433))),
        ("postgresql://u@%2Frun%2Fpostgresql/db", (DatabaseHost("/run/postgresql"),)),
        ("postgresql:///db?host=/run/postgresql&port=5433", (DatabaseHost("/run/postgresql", 5433),)),
        ("postgresql://u:p@/db", ()),
    ],
)
def test_the_hosts_of_a_url(url: str, hosts: tuple[DatabaseHost, ...]) -> None:
    assert parse_database_url(url).hosts == hosts


def test_the_driver_gets_neither_hosts_nor_parameters_of_libpq() -> None:
    url = parse_database_url(
        "postgresql://u%40x:p%2Fq@h1,h2/d?sslmode=require&connect_timeout=7&keepalives=1&options=-c%20jit%3Doff"
    )

    assert url.driver_url == "postgresql://u%40x:p%2Fq@/d?sslmode=require&options=-c%20jit%3Doff"
    assert (url.login, url.host_timeout) == ("u@x", timedelta(seconds=7))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://u:p@h/db", "must begin with postgresql://"),
        ("postgresql:/db", "must begin with postgresql://"),
        ("postgresql://u:p/w@h1,h2/db", "percent-encoded"),
        ("postgresql://u:p#w@h1/db", "percent-encoded"),
        ("postgresql://u:p@w@h1/db", "percent-encoded"),
        ("postgresql://u:p@h1:65536/db", "percent-encoded"),
        ("postgresql://u:p@[::1/db", "percent-encoded"),
        ("postgresql://u:p@/db?host=h1,h2,h3&port=1,2", "percent-encoded"),
        ("postgresql://h1/db?connect_timeout=soon", "connect_timeout"),
        ("postgresql://h1/db?channel_binding=require", "channel_binding"),
    ],
)
def test_an_invalid_url_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        parse_database_url(url)

    assert "p@" not in str(raised.value)
