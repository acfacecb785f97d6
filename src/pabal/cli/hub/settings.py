"""`pabal settings`."""

from pabal.cli.options import Json
from pabal.cli.output import print_json, print_table
from pabal.settings import Settings, display_setting, load_settings, setting_source, variable_name


def settings_command(*, json: Json = False) -> None:
    """Show the effective settings and where they come from. Secrets stay hidden."""
    settings = load_settings()
    rows = [
        (variable_name(name), display_setting(getattr(settings, name)), setting_source(settings, name))
        for name in Settings.model_fields
    ]
    if json:
        print_json({name: {"value": value, "from": source} for name, value, source in rows})
    else:
        print_table(
            ("setting", "value", "from"),
            [(name, "" if value is None else value, source) for name, value, source in rows],
        )
