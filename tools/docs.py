"""Write what the documents say about doors, settings and what goes out from the code itself: `make docs`."""  # noqa: INP001 run as a module, installed nowhere

import re
from collections.abc import Iterator
from pathlib import Path

from pabal.api import routes
from pabal.notifications.decision.table import decision_table_markdown
from pabal.settings import Settings, display_setting, variable_name
from pabal.web.reference import api_markdown

DOCS = Path(__file__).parent.parent / "docs"


def written() -> Iterator[tuple[Path, str]]:
    """Every file this writes, and what belongs into it now."""
    yield DOCS / "api.md", api_markdown(routes.ROUTES)
    yield within("running.md", "settings", settings_table())
    yield within("notifications.md", "table", decision_table_markdown())


def within(name: str, mark: str, text: str) -> tuple[Path, str]:
    """A document that people write, with what stands between two marks written anew."""
    path = DOCS / name
    section = re.compile(rf"(?<=<!-- {mark} -->\n).*(?=<!-- /{mark} -->)", re.DOTALL)
    return path, section.sub(lambda _: text, path.read_text(encoding="utf-8"))


def settings_table() -> str:
    rows = ["| variable | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{variable_name(name)}` | {default(name)} | {field.description} |")
    return "\n".join(rows) + "\n"


def default(name: str) -> str:
    field = Settings.model_fields[name]
    value = field.default if field.default_factory is None else None  # a made default differs from machine to machine
    return "" if value is None else f"`{str(display_setting(value)).lower()}`"


def main() -> None:
    for path, text in written():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
