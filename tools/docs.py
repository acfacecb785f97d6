"""Generate the parts of the documents that follow from the code: `make docs`."""  # noqa: INP001 run as a module, not installed

import re
from collections.abc import Iterator
from pathlib import Path

from tools.typescript import typescript_types

from pabal.api import routes
from pabal.db.schema_reference import database_markdown
from pabal.notifications.decision.table import decision_table_markdown
from pabal.settings import Settings, variable_name
from pabal.settings_display import display_setting
from pabal.web.reference.openapi import build_openapi
from pabal.web.reference.pages import api_markdown

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def generated_documents() -> Iterator[tuple[Path, str]]:
    """Every generated file with its current content."""
    yield DOCS / "api.md", api_markdown(routes.ROUTES)
    yield DOCS / "database.md", database_markdown()
    yield ROOT / "clients" / "typescript" / "src" / "api.ts", typescript_types(build_openapi(routes.ROUTES))
    yield with_section("running.md", "settings", settings_table())
    yield with_section("notifications.md", "table", decision_table_markdown())


def with_section(name: str, mark: str, text: str) -> tuple[Path, str]:
    """A handwritten document, with the section between two marks replaced."""
    path = DOCS / name
    section = re.compile(rf"(?<=<!-- {mark} -->\n).*(?=<!-- /{mark} -->)", re.DOTALL)
    return path, section.sub(lambda _: text, path.read_text(encoding="utf-8"))


def settings_table() -> str:
    rows = ["| variable | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{variable_name(name)}` | {format_default(name)} | {field.description} |")
    return "\n".join(rows) + "\n"


def format_default(name: str) -> str:
    field = Settings.model_fields[name]
    value = field.default if field.default_factory is None else None  # computed defaults differ between machines
    return "" if value is None else f"`{str(display_setting(value)).lower()}`"


def main() -> None:
    for path, text in generated_documents():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
