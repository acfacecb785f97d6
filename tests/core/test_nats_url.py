import pytest

from pabal.core.errors import InvalidSettings
from pabal.core.nats_url import NatsServer, parse_nats_urls
from pabal.settings import load_settings
from pabal.settings_display import display_setting


def test_servers_have_hosts_ports_and_credentials() -> None:
    assert parse_nats_urls("nats://hub:p%40ss%2C@h1, nats://[::1]:4333") == (
        NatsServer("h1", 4222, tls=False, user="hub", password="p@ss,"),
        NatsServer("::1", 4333, tls=False),
    )
    assert parse_nats_urls("TLS://s%2Fecret@h1:1") == (NatsServer("h1", 1, tls=True, token="s/ecret"),)


def test_the_text_of_a_server_has_no_credentials() -> None:
    [server, token] = parse_nats_urls("tls://hub:hunter2@h1,tls://hunter2@[::1]:4333")

    assert (str(server), str(token)) == ("tls://h1:4222", "tls://[::1]:4333")
    assert "hunter2" not in repr((server, token))


@pytest.mark.parametrize(
    "text",
    [
        "h1:4222",
        "http://h1:4222",
        "nats://",
        "nats://:4222",
        "nats://h1:0",
        "nats://h1:99999",
        "nats://h1:port",
        "nats://[::1",
        "nats://h1/subject",
        "nats://h1?tls=1",
        "nats://hunter2@a/b@h1",
        "nats://h1,",
        "nats://h1,tls://h2",
    ],
)
def test_an_invalid_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        load_settings(doorbell=text)

    [error] = refused.value.errors
    assert error.field == "PABAL_DOORBELL"
    assert "hunter2" not in str(error)


def test_the_setting_is_optional_and_shown_without_its_value() -> None:
    assert load_settings(doorbell="").nats_servers == ()
    settings = load_settings(doorbell="nats://hub:hunter2@h1")

    assert settings.nats_servers == (NatsServer("h1", 4222, tls=False, user="hub", password="hunter2"),)
    assert display_setting(settings.doorbell) == "***"
    assert "hunter2" not in repr(settings)
