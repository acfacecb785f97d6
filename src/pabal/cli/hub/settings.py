"""`pabal settings`."""

from typing import Annotated, Any

from pabal.cli.options import Json, flag
from pabal.cli.output import print_json, print_table
from pabal.keys.webhook_secret import with_webhook_secret
from pabal.settings import Settings, load_settings, variable_name
from pabal.settings_display import display_setting, setting_source

ShowWebhookSecret = Annotated[
    bool,
    flag("Show the webhook secret, for Kakao's skill settings.", "--show"),
]
WEBHOOK_SECRETS = frozenset({"webhook_secret", "webhook_secret_previous"})


def settings_command(*, show: ShowWebhookSecret = False, json: Json = False) -> None:
    """Show the effective settings.

    Also shows where each comes from. Secrets stay hidden.
    """
    settings = load_settings()
    complete = with_webhook_secret(settings)
    rows = [
        (
            variable_name(name),
            displayed_value(complete, name, reveal=show and name in WEBHOOK_SECRETS),
            "file" if getattr(complete, name) is not getattr(settings, name) else setting_source(settings, name),
        )
        for name in Settings.model_fields
    ]
    if json:
        print_json({name: {"value": value, "from": source} for name, value, source in rows})
    else:
        print_table(
            ("setting", "value", "from"),
            [(name, "" if value is None else value, source) for name, value, source in rows],
        )


def displayed_value(settings: Settings, name: str, *, reveal: bool) -> Any:
    value = getattr(settings, name)
    return value.get_secret_value() if reveal and value else display_setting(value)
