"""`pabal settings`: what is in force."""

from pabal.cli import screen
from pabal.cli.options import Json
from pabal.settings import Settings, origin, read, shown, variable


def settings(*, json: Json = False) -> None:
    """Show every setting in force; secrets stay hidden."""
    inforce = read()
    rows = [(variable(name), shown(getattr(inforce, name)), origin(inforce, name)) for name in Settings.model_fields]
    if json:
        screen.as_json({name: {"value": value, "from": source} for name, value, source in rows})
    else:
        screen.table(("setting", "value", "from"), [(n, "" if v is None else v, source) for n, v, source in rows])
