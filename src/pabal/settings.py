"""Every knob of the hub, once. Read once at start; all mistakes are reported together."""

import ipaddress
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pabal.core.data_dir import default_data_dir
from pabal.core.duration import format_duration, parse_duration
from pabal.core.errors import FieldError, InvalidSettings

ENV_PREFIX = "PABAL_"
MIN_PASSWORD_LENGTH = 8
MIN_DURATION = timedelta(milliseconds=1)


def to_lower_case(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def split_comma_list(value: Any) -> Any:
    """Read a comma list."""
    if isinstance(value, str):
        return [word for part in value.split(",") if (word := part.strip())]
    return value


DAY = timedelta(days=1)
Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
CommaList = Annotated[list[str], NoDecode, BeforeValidator(split_comma_list)]


class Settings(BaseSettings):
    """The hub's settings: environment variables named PABAL_*, or a file `.env` in the working folder."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,  # `PABAL_PORT=` is how a compose file says nothing
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    host: str = Field("127.0.0.1", min_length=1, description="Address the hub listens on.")
    port: int = Field(8700, ge=0, le=65535, description="Port the hub listens on; 0 takes a free one.")
    data_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default_factory=default_data_dir,
        description="Folder of the embedded database and the keys. Default: /var/lib/pabal for root, else the user's.",
    )
    database_url: SecretStr | None = Field(
        None, description="An external PostgreSQL ≥ 15 (postgresql://…). Unset: the embedded server is started."
    )
    database_direct_url: SecretStr | None = Field(
        None, description="The same database without the pooler in between, for LISTEN and migrations."
    )
    database_pooler: bool | None = Field(
        None, description="Whether database_url leads through a transaction pooler. Unset: found out at start."
    )
    database_pool_size: int = Field(16, ge=2, le=200, description="Most connections one process opens for its work.")
    connect_timeout: Duration = Field(
        timedelta(seconds=5), ge=MIN_DURATION, description="How long to wait for a database connection."
    )
    statement_timeout: Duration = Field(
        timedelta(seconds=30), ge=MIN_DURATION, description="How long one statement may take."
    )
    pg_bin: Path | None = Field(None, description="Folder of PostgreSQL's programs for the embedded server.")
    admin_password: SecretStr | None = Field(
        None, description="Password of the first operator, `admin`. Unset: one is made and printed once."
    )
    keys: SecretStr | None = Field(
        None, description="The hub's keys, as `pabal keys make` prints them. Unset: keys.json in the data folder."
    )
    token_audience: str = Field("pabal", min_length=1, description="What access tokens say they are for (aud).")
    public_url: str | None = Field(None, description="How the world reaches the hub, e.g. https://hub.example.org.")
    trusted_proxies: CommaList = Field(
        default_factory=list[str],
        description="Addresses or networks whose X-Forwarded-For or X-Real-IP is believed, separated by commas.",
    )
    callback_allow: CommaList = Field(
        default_factory=list[str],
        description="More origins a callback may go to, e.g. http://127.0.0.1 while developing; no port means any.",
    )
    webhook_secret: SecretStr | None = Field(
        None, description="Secret of Kakao's webhook: checks X-Kakao-Signature, or the fixed header's value."
    )
    webhook_secret_previous: SecretStr | None = Field(
        None, description="The secret before, still believed while the new one spreads."
    )
    webhook_header: str = Field(
        "X-Pabal-Secret",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="The header Kakao's console adds to a skill, with PABAL_WEBHOOK_SECRET as its value.",
    )
    webhook_per_conversation: int = Field(
        30, ge=0, description="Webhooks a minute one conversation may bring; 0 means any number."
    )
    webhook_per_channel: int = Field(
        1000, ge=0, description="Webhooks a minute one channel may bring; 0 means any number."
    )
    command_prefix: str = Field(
        "/", min_length=1, max_length=16, pattern=r"^\S+$", description="What chat commands begin with: /pair, /help."
    )
    chat_language: Literal["ko", "en"] = Field("ko", description="The language the hub itself speaks in the chat.")
    waiting_text: str | None = Field(
        None, max_length=1000, description="What Kakao shows while the bot thinks. Unset: Kakao's own words."
    )
    still_working_after: Duration = Field(
        timedelta(seconds=50),
        le=timedelta(seconds=54),
        description="When no answer has come by then, the user is told that it takes longer; 0 means never.",
    )
    queue_life: Duration = Field(
        timedelta(minutes=15), ge=MIN_DURATION, description="How long a chat message waits for a bot that is away."
    )
    pairing_approval: bool = Field(False, description="Whether the bot's owner has to approve each user who pairs.")
    templates: Annotated[Path, AfterValidator(Path.expanduser)] | None = Field(
        None, description="A folder of one's own notification templates, one TOML file each, named after its key."
    )
    discord_token: SecretStr | None = Field(
        None, description="The Discord bot's token. Unset: notices for Discord are written down instead of sent."
    )
    discord_api_url: str = Field(
        "https://discord.com/api/v10", description="Where Discord's API is; another address for a stand-in."
    )
    notifications_per_service: int = Field(
        6000, ge=0, description="Notifications a minute one service may ask for at the door; 0 means any number."
    )
    operator_channel: str | None = Field(
        None,
        pattern=r"^[0-9]{1,20}$",
        description="The Discord channel the hub's own alarms go to. Unset: they are only logged.",
    )
    alarm_dead_letters: int = Field(
        10, ge=1, description="So many dead letters of one service that nobody has seen to are an alarm."
    )
    alarm_callbacks: int = Field(
        10, ge=1, description="So many failed callbacks of one channel within ten minutes are an alarm."
    )
    body_limit: int = Field(1_048_576, ge=1024, description="Most bytes a request body may have.")
    stop_within: Duration = Field(
        timedelta(seconds=1), description="How long open requests and held rows get when the hub stops."
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(to_lower_case)] = Field(
        "info", description="How much is logged."
    )
    log_format: Literal["auto", "json", "pretty"] = Field(
        "auto", description="How it is logged; auto is pretty on a terminal, else JSON."
    )
    keep_events: Duration = Field(timedelta(days=30), ge=DAY, description="How long an event is kept after it ended.")
    keep_dead_letters: Duration = Field(
        timedelta(days=90),
        ge=DAY,
        description="How long a dead letter is kept after it was resolved; before that it stays.",
    )
    keep_notifications: Duration = Field(
        timedelta(days=90), ge=DAY, description="How long a notification is kept after it ended."
    )
    keep_messages: Duration = Field(
        timedelta(days=7), ge=DAY, description="How long a chat message is kept after it ended."
    )
    keep_tokens: Duration = Field(
        timedelta(days=30), ge=DAY, description="How long a family of tokens is kept after it ended."
    )
    sample_data: bool = Field(False, description="Insert the schema's sample rows when migrating.")

    @field_validator("database_url", "database_direct_url")
    @classmethod
    def _check_postgres_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None or not url.get_secret_value():
            return None
        where = urlsplit(url.get_secret_value())
        if where.scheme not in {"postgresql", "postgres"}:
            raise ValueError("is an address that begins with postgresql://")
        try:
            _ = where.port
        except ValueError:
            raise ValueError("cannot be read; a password with : / @ # ? in it must be percent-encoded") from None
        return url

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError:
                raise ValueError(f"{network!r} is not an address or network") from None
        return networks

    @field_validator("callback_allow")
    @classmethod
    def _check_origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if not is_origin(origin):
                raise ValueError(f"{origin!r} is not an origin such as https://host or http://127.0.0.1:9000")
        return origins

    @field_validator("public_url", "discord_api_url")
    @classmethod
    def _check_web_url(cls, url: str | None) -> str | None:
        if url and (urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname):
            raise ValueError("is an address such as https://hub.example.org")
        return url.rstrip("/") if url else None

    @field_validator("admin_password")
    @classmethod
    def _check_password_length(cls, password: SecretStr | None) -> SecretStr | None:
        if password is not None and 0 < len(password.get_secret_value()) < MIN_PASSWORD_LENGTH:
            raise ValueError(f"has at least {MIN_PASSWORD_LENGTH} characters")
        return password if password and password.get_secret_value() else None

    @model_validator(mode="wrap")
    @classmethod
    def _report_errors_together(cls, written: dict[str, Any], build: ModelWrapValidatorHandler[Self]) -> Self:
        """What is wrong with each and what they say against each other, told together."""
        quarrels = [*find_missing_companions(written)]
        try:
            settings = build(written)
        except ValidationError as error:
            raise InvalidSettings(*map(setting_error, error.errors()), *quarrels) from None
        if quarrels:
            raise InvalidSettings(*quarrels)
        return settings

    @property
    def issuer(self) -> str:
        """How tokens and their clients name this hub."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.public_url or f"http://{host}:{self.port}"

    @property
    def uses_embedded_server(self) -> bool:
        return self.database_url is None


REQUIRED_COMPANIONS = (
    ("database_direct_url", "database_url", "it is the same database, without the pooler"),
    ("webhook_secret_previous", "webhook_secret", "the secret before is only believed beside the new one"),
)
"""Settings that say nothing without another, and why."""


def load_settings(**overrides: object) -> Settings:
    """Read the settings; what is said on the command line wins. Raises all mistakes at once."""
    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return Settings(**given)


def find_missing_companions(written: dict[str, Any]) -> Iterator[FieldError]:
    for name, other, why in REQUIRED_COMPANIONS:
        if written.get(name) and not written.get(other):
            yield FieldError(variable_name(name), f"needs {variable_name(other)}: {why}")


def setting_error(error: Any) -> FieldError:
    why = str(error["msg"]).removeprefix("Value error, ")
    return FieldError(variable_name(str(error["loc"][0])), why[:1].lower() + why[1:])


def is_origin(text: str) -> bool:
    """Scheme, host and perhaps a port: nothing before and nothing after."""
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return False
    bare = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    return parts.scheme in {"http", "https"} and bool(host) and bare


def variable_name(name: str) -> str:
    return ENV_PREFIX + name.upper()


def display_setting(value: Any) -> Any:
    """A setting's value as it may be shown: a secret stays one."""
    match value:
        case SecretStr():
            return "***"
        case timedelta():
            return format_duration(value)
        case Path():
            return str(value)
        case list():
            return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return value


def setting_source(settings: Settings, name: str) -> Literal["set", "default"]:
    """Whether somebody set it, in the environment, in a file or on the command line."""
    return "set" if name in settings.model_fields_set else "default"
