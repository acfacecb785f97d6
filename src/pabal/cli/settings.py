"""`pabal settings`: what is in force."""

from pabal.cli.options import Json
from pabal.cli.output import print_json, print_table
from pabal.settings import Settings, display_setting, load_settings, setting_source, variable_name


def settings_command(*, json: Json = False) -> None:
    """Show every setting in force; secrets stay hidden."""
    inforce = load_settings()
    rows = [
        (variable_name(name), display_setting(getattr(inforce, name)), setting_source(inforce, name))
        for name in Settings.model_fields
    ]
    if json:
        print_json({name: {"value": value, "from": source} for name, value, source in rows})
    else:
        print_table(("setting", "value", "from"), [(n, "" if v is None else v, source) for n, v, source in rows])
