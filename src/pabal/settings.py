"""The settings of the hub. They are read once at start; all errors are reported together."""

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
from pabal.core.database_url import parse_database_url
from pabal.core.duration import parse_duration
from pabal.core.errors import FieldError, InvalidSettings
from pabal.core.nats_url import NatsServer, parse_nats_urls
from pabal.core.network import check_origins, is_loopback, is_origin, normalize_origins

ENV_PREFIX = "PABAL_"
MIN_PASSWORD_LENGTH = 8
MIN_DURATION = timedelta(milliseconds=1)


def to_lower_case(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def split_comma_list(value: Any) -> Any:
    """Read a comma-separated list."""
    if isinstance(value, str):
        return [word for part in value.split(",") if (word := part.strip())]
    return value


DAY = timedelta(days=1)
Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
CommaList = Annotated[list[str], NoDecode, BeforeValidator(split_comma_list)]


class Settings(BaseSettings):
    """The hub's settings: environment variables named PABAL_*, or a file `.env` in the working directory."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,  # compose files write `PABAL_PORT=` for an unset variable
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8700, ge=0, le=65535, description="Port to listen on; 0 picks a free port.")
    processes: int | None = Field(
        None,
        ge=1,
        le=64,
        description=(
            "Number of processes of `pabal serve` and `pabal up` on the port, under a supervisor that replaces them. "
            "Unset: one process without a supervisor."
        ),
    )
    work_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of `pabal work` for /metrics, /healthz and /readyz; 0 picks a free port. Unset: none.",
    )
    work_host: str = Field("127.0.0.1", min_length=1, description="Address of PABAL_WORK_PORT.")
    data_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default_factory=default_data_dir,
        description=(
            "Directory of the embedded database and the keys. Default: /var/lib/pabal for root, else in your home."
        ),
    )
    database_url: SecretStr | None = Field(
        None,
        description=(
            "URL of an external PostgreSQL 15 or newer (postgresql://…), with one host or several. "
            "Unset: the embedded server."
        ),
    )
    database_direct_url: SecretStr | None = Field(
        None, description="URL of the same database without a pooler, for LISTEN and migrations."
    )
    database_pooler: bool | None = Field(
        None, description="Whether PABAL_DATABASE_URL leads to a transaction pooler. Unset: detected at start."
    )
    database_prepared: bool = Field(
        False,
        description=(
            "Whether the transaction pooler keeps prepared statements, as PgBouncer does from 1.21 on with "
            "max_prepared_statements."
        ),
    )
    database_pool_size: int = Field(16, ge=2, le=200, description="Maximum number of pooled connections per process.")
    doorbell: SecretStr | None = Field(
        None,
        description=(
            "NATS servers that carry wake-ups between processes, e.g. nats://user:password@host:4222, or tls://…; "
            "comma-separated. Unset: PostgreSQL's NOTIFY."
        ),
    )
    connect_timeout: Duration = Field(
        timedelta(seconds=5), ge=MIN_DURATION, description="Timeout for a database connection."
    )
    statement_timeout: Duration = Field(
        timedelta(seconds=30), ge=MIN_DURATION, description="Timeout for one SQL statement."
    )
    pg_bin: Path | None = Field(None, description="Directory of PostgreSQL's programs for the embedded server.")
    pg_user: str | None = Field(
        None, description="User that runs the embedded server if root starts it. Unset: pabal, created if missing."
    )
    admin_password: SecretStr | None = Field(
        None, description="Password of the first operator, `admin`. Unset: generated and printed once."
    )
    keys: SecretStr | None = Field(
        None, description="The hub's keys, as printed by `pabal key generate`. Unset: keys.json in the data directory."
    )
    token_audience: str = Field("pabal", min_length=1, description="Audience (aud) of access tokens.")
    public_url: str | None = Field(None, description="Public URL of the hub, e.g. https://hub.example.org.")
    trusted_proxies: CommaList = Field(
        default_factory=list[str],
        description="Comma-separated addresses or networks whose X-Forwarded-For or X-Real-IP header is trusted.",
    )
    connections_per_address: int = Field(
        512,
        ge=0,
        description=(
            "Maximum number of connections per client address without an authenticated request; others wait. "
            "0 disables the limit; trusted proxies have none."
        ),
    )
    callback_allow: Annotated[CommaList, AfterValidator(check_origins)] = Field(
        default_factory=list[str],
        description="More origins that callbacks may be sent to, e.g. http://127.0.0.1; without a port, any port.",
    )
    allowed_hosts: CommaList = Field(
        default_factory=list[str],
        description=(
            "More host names for the web pages, e.g. hub.local. The host of PABAL_PUBLIC_URL, localhost and addresses "
            "are always allowed."
        ),
    )
    allowed_origins: Annotated[CommaList, AfterValidator(normalize_origins)] = Field(
        default_factory=list[str],
        description="Origins of your own pages that may show a person's toasts, e.g. https://app.example.org.",
    )
    webhook_secret: SecretStr | None = Field(
        None,
        description=(
            "Secret of the Kakao webhook: checks X-Kakao-Signature, or the value of PABAL_WEBHOOK_HEADER. "
            "Unset: `pabal up` with the embedded database generates one in the data directory; else the webhook "
            "refuses every request."
        ),
    )
    webhook_secret_previous: SecretStr | None = Field(
        None, description="Previous webhook secret, accepted during a rotation."
    )
    webhook_header: str = Field(
        "X-Pabal-Secret",
        pattern=r"^[A-Za-z0-9-]{1,64}\z",
        description="Header that Kakao sends with PABAL_WEBHOOK_SECRET as its value; set it in Kakao's console.",
    )
    webhook_open: bool = Field(
        False,
        description=(
            "Accept webhooks without a secret, for tests on this computer. Requires a loopback address in "
            "PABAL_HOST, no PABAL_PUBLIC_URL and no PABAL_TRUSTED_PROXIES."
        ),
    )
    relay_encrypt_text: bool = Field(
        default=False,
        description=(
            "Store the texts of relay messages and replies, and callback URLs, encrypted with a key per account. The "
            "database and its backups are then unreadable without keys.json, and losing keys.json loses the texts."
        ),
    )
    webhook_per_conversation: int = Field(
        30, ge=0, description="Maximum number of webhooks per minute and conversation; 0 disables the limit."
    )
    webhook_per_channel: int = Field(
        1000, ge=0, description="Maximum number of webhooks per minute and channel; 0 disables the limit."
    )
    account_rate_limit: int = Field(
        600,
        ge=1,
        le=2**31 - 1,
        description=(
            "Polls and replies per minute that a new account is allowed. Replies above it wait. "
            "`pabal account set --rate-limit` changes an existing account."
        ),
    )
    command_prefix: str = Field(
        "/", min_length=1, max_length=16, pattern=r"^\S+\z", description="Prefix of chat commands: /pair, /help."
    )
    chat_language: Literal["ko", "en"] = Field("ko", description="Language of the hub's own chat messages.")
    waiting_text: str | None = Field(
        None, max_length=1000, description="Text that Kakao shows while the bot replies. Unset: Kakao's default."
    )
    still_working_after: Duration = Field(
        timedelta(seconds=50),
        le=timedelta(seconds=54),
        description="When to tell the user that the reply takes longer; 0 disables the message.",
    )
    queue_life: Duration = Field(
        timedelta(minutes=15), ge=MIN_DURATION, description="How long a chat message waits for a bot that is offline."
    )
    pairing_approval: bool = Field(False, description="Whether the bot's owner must approve every pairing.")
    templates: Annotated[Path, AfterValidator(Path.expanduser)] | None = Field(
        None, description="Directory of your notification templates: one TOML file per template, named after its key."
    )
    discord_token: SecretStr | None = Field(
        None,
        description=(
            "Token of the Discord bot. Unset: normal notifications for Discord are suppressed (no_transport), "
            "important ones and emergencies wait."
        ),
    )
    discord_dry_run: bool = Field(
        False, description="Log notifications for Discord instead of sending them, and mark them as sent. For demos."
    )
    discord_api_url: str = Field(
        "https://discord.com/api/v10", description="Base URL of Discord's API; change it to use a fake for testing."
    )
    plain_claim_life: Duration = Field(
        timedelta(minutes=5),
        ge=MIN_DURATION,
        description="How long an event that plain SQL set to processing is left to its consumer.",
    )
    subscriptions_per_service: int = Field(
        100, ge=1, le=10_000, description="Maximum number of subscriptions per service. Existing ones stay."
    )
    notifications_per_service: int = Field(
        6000,
        ge=0,
        description="Maximum number of notifications per minute and service, requested or made by rules from its "
        "events; 0 disables the limit.",
    )
    operator_channel: str | None = Field(
        None,
        pattern=r"^[0-9]{1,20}\z",
        description="Id of the Discord channel for the hub's alerts. Unset: alerts are only logged.",
    )
    alarm_dead_letters: int = Field(10, ge=1, description="Alert when a service has this many unresolved dead letters.")
    alarm_callbacks: int = Field(
        10, ge=1, description="Alert when this many callbacks of a channel fail within ten minutes."
    )
    body_limit: int = Field(
        1_048_576,
        ge=1024,
        description="Maximum size of a request body in bytes. Most endpoints accept 256 KB at most, forms 64 KB.",
    )
    stop_within: Duration = Field(
        timedelta(seconds=1), description="How long open requests and running handlers may continue when the hub stops."
    )
    lame_duck: Duration = Field(
        timedelta(),
        description=(
            "How long the hub goes on serving after SIGTERM, with /readyz at 503, so that a load balancer stops using "
            "it first."
        ),
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(to_lower_case)] = Field(
        "info", description="Log level."
    )
    log_format: Literal["auto", "json", "pretty"] = Field(
        "auto", description="Log format; auto is pretty on a terminal, else JSON."
    )
    log_requests_per_second: int = Field(
        200, ge=0, description="Successful requests that a process logs per second, errors apart; 0 logs all of them."
    )
    keep_events: Duration = Field(timedelta(days=30), ge=DAY, description="Retention of ended events.")
    keep_dead_letters: Duration = Field(
        timedelta(days=90),
        ge=DAY,
        description="Retention of resolved dead letters. Unresolved ones are kept.",
    )
    keep_notifications: Duration = Field(timedelta(days=90), ge=DAY, description="Retention of ended notifications.")
    keep_messages: Duration = Field(timedelta(days=7), ge=DAY, description="Retention of ended chat messages.")
    keep_tokens: Duration = Field(timedelta(days=30), ge=DAY, description="Retention of ended token families.")
    sample_data: bool = Field(False, description="Insert sample rows when migrating.")

    @field_validator("database_url", "database_direct_url")
    @classmethod
    def _check_postgres_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None or not url.get_secret_value():
            return None
        parse_database_url(url.get_secret_value())
        return url

    @field_validator("doorbell")
    @classmethod
    def _check_nats_urls(cls, urls: SecretStr | None) -> SecretStr | None:
        if urls:
            parse_nats_urls(urls.get_secret_value())
        return urls or None

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError:
                raise ValueError(f"{network!r} is not an address or network") from None
        return networks

    @field_validator("allowed_hosts")
    @classmethod
    def _check_host_names(cls, hosts: list[str]) -> list[str]:
        for host in hosts:
            if not is_origin(f"http://{host}"):
                raise ValueError(f"{host!r} is not a host such as hub.local or hub.local:8700")
        return [host.lower() for host in hosts]

    @field_validator("public_url", "discord_api_url")
    @classmethod
    def _check_web_url(cls, url: str | None) -> str | None:
        if url and (urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname):
            raise ValueError("must be a URL such as https://hub.example.org")
        return url.rstrip("/") if url else None

    @field_validator("admin_password")
    @classmethod
    def _check_password_length(cls, password: SecretStr | None) -> SecretStr | None:
        if password is not None and 0 < len(password.get_secret_value()) < MIN_PASSWORD_LENGTH:
            raise ValueError(f"must have at least {MIN_PASSWORD_LENGTH} characters")
        return password if password and password.get_secret_value() else None

    @model_validator(mode="wrap")
    @classmethod
    def _report_errors_together(cls, values: dict[str, Any], validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Report invalid settings and missing companions together."""
        conflicts = [*find_missing_companions(values)]
        try:
            settings = validate(values)
        except ValidationError as error:
            raise InvalidSettings(*map(setting_error, error.errors()), *conflicts) from None
        conflicts += find_open_webhook_conflicts(settings)
        if conflicts:
            raise InvalidSettings(*conflicts)
        return settings

    @property
    def issuer(self) -> str:
        """The issuer (iss) of access tokens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.public_url or f"http://{host}:{self.port}"

    @property
    def nats_servers(self) -> tuple[NatsServer, ...]:
        """The servers that carry wakeups; none without PABAL_DOORBELL."""
        return parse_nats_urls(self.doorbell.get_secret_value()) if self.doorbell else ()

    @property
    def has_discord_transport(self) -> bool:
        """Whether notifications can be sent to Discord, or are logged as if they were."""
        token = self.discord_token.get_secret_value() if self.discord_token else ""
        return bool(token) or self.discord_dry_run

    @property
    def uses_embedded_server(self) -> bool:
        return self.database_url is None


REQUIRED_COMPANIONS = (
    ("database_direct_url", "database_url", "it is the same database without the pooler"),
    ("webhook_secret_previous", "webhook_secret", "the previous secret is only accepted beside the new one"),
)
"""Settings that require another one, and why."""


def load_settings(**overrides: object) -> Settings:
    """Read the settings. `overrides` from the command line take precedence. Raises InvalidSettings with all errors."""
    values: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return Settings(**values)


def find_missing_companions(values: dict[str, Any]) -> Iterator[FieldError]:
    for name, other, why in REQUIRED_COMPANIONS:
        if values.get(name) and not values.get(other):
            yield FieldError(variable_name(name), f"requires {variable_name(other)}: {why}")


def find_open_webhook_conflicts(settings: Settings) -> Iterator[FieldError]:
    """An open webhook lets every caller act as any chat user, so only this computer may reach it."""
    if not settings.webhook_open:
        return
    name = variable_name("webhook_open")
    if not is_loopback(settings.host):
        yield FieldError(name, f"requires a loopback address in {variable_name('host')}, not {settings.host}")
    for other in ("public_url", "webhook_secret", "trusted_proxies"):
        if getattr(settings, other):
            yield FieldError(name, f"cannot be combined with {variable_name(other)}")


def setting_error(error: Any) -> FieldError:
    why = str(error["msg"]).removeprefix("Value error, ")
    return FieldError(variable_name(str(error["loc"][0])), why[:1].lower() + why[1:])


def variable_name(name: str) -> str:
    return ENV_PREFIX + name.upper()
