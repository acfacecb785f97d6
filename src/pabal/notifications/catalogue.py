"""The catalogue: every template there is, read from files at the start.

One file a template, named after its key. The operator's own folder may add templates, and say in other words what a
template of ours says; what such a template is told stays the same, because our code tells it.
"""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pabal.core.errors import FieldError, Invalid, InvalidSettings
from pabal.core.log import get_logger
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.grammar import InvalidTemplateText, find_variables
from pabal.notifications.plan import Criticality, NotificationCategory, NotificationChannel
from pabal.notifications.template import TEMPLATE_LOCALES, Template, TemplateText, VariableType

Q = load_queries(__file__)
log = get_logger()

TEMPLATE_SUFFIX = ".toml"
BUILTIN_TEMPLATES = Path(str(resources.files("pabal.notifications") / "templates"))

VariableName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
TemplateKey = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$", max_length=128)]
NonEmptyText = Annotated[str, msgspec.Meta(min_length=1)]


class TextSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text, as a file has it."""

    body: NonEmptyText
    title: NonEmptyText | None = None


class TemplateFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A template, as a file has it: a section for each channel and language."""

    category: NotificationCategory
    criticality: Criticality = Criticality.NORMAL
    variables: dict[VariableName, VariableType] = {}
    user_dm: dict[str, TextSection] = {}
    guild_audit_channel: dict[str, TextSection] = {}
    dashboard_toast: dict[str, TextSection] = {}


class TemplateCatalogue:
    """The templates by their keys."""

    def __init__(self, templates: Mapping[str, Template]) -> None:
        self._templates = dict(sorted(templates.items()))

    def get(self, key: str) -> Template:
        try:
            return self._templates[key]
        except KeyError:
            raise Invalid.of_field("template_key", f"there is no template {key[:128]}") from None

    def all(self) -> list[Template]:
        return [*self._templates.values()]

    def __contains__(self, key: object) -> bool:
        return key in self._templates


def load_templates(custom_folder: Path | None = None) -> TemplateCatalogue:
    """Read our templates and those of the operator's folder; everything wrong with any of them is told together."""
    ours, wrong = load_builtin_templates()
    templates, mistakes = {**ours}, [*wrong]
    if custom_folder is not None:
        if not custom_folder.is_dir():
            raise InvalidSettings(FieldError("PABAL_TEMPLATES", f"{custom_folder} is not a folder"))
        theirs, more = load_template_folder(custom_folder)
        mistakes += more
        mistakes += [
            FieldError(f"{key}{TEMPLATE_SUFFIX}", "has other variables than the template it stands for")
            for key, each in theirs.items()
            if key in templates and each.variables != templates[key].variables
        ]
        templates |= theirs
    if mistakes:
        raise InvalidSettings(*mistakes)
    return TemplateCatalogue(templates)


@cache
def load_builtin_templates() -> tuple[dict[str, Template], list[FieldError]]:
    return load_template_folder(BUILTIN_TEMPLATES)


def load_template_folder(folder: Path) -> tuple[dict[str, Template], list[FieldError]]:
    templates: dict[str, Template] = {}
    mistakes: list[FieldError] = []
    for path in sorted(folder.glob(f"*{TEMPLATE_SUFFIX}")):
        try:
            template = load_template_file(path)
        except (msgspec.ValidationError, UnicodeDecodeError, tomllib.TOMLDecodeError, OSError) as error:
            mistakes.append(FieldError(path.name, str(error)))
            continue
        templates[template.key] = template
        mistakes += [FieldError(path.name, why) for why in template_errors(template)]
    return templates, mistakes


def load_template_file(path: Path) -> Template:
    content = path.read_bytes()
    key = msgspec.convert(path.name.removesuffix(TEMPLATE_SUFFIX), TemplateKey)
    written = msgspec.convert(tomllib.loads(content.decode()), TemplateFile)
    sections: dict[NotificationChannel, dict[str, TextSection]] = {
        channel: getattr(written, channel) for channel in NotificationChannel
    }
    return Template(
        key=key,
        category=written.category,
        criticality=written.criticality,
        variables=written.variables,
        texts={
            channel: {locale: TemplateText(said.body, said.title) for locale, said in spoken.items()}
            for channel, spoken in sections.items()
            if spoken
        },
        checksum=sha256(content).hexdigest(),
    )


def template_errors(template: Template) -> Iterator[str]:
    """What is wrong with a template by itself: a language or a variable that is missing, or one nobody uses."""
    if not template.texts:
        yield "has no text"
    if template.category is NotificationCategory.MARKETING and template.criticality is Criticality.EMERGENCY:
        yield "is advertising, which is no emergency"
    used: set[str] = set()
    for channel, spoken in template.texts.items():
        yield from (f"{channel}: has no text in {locale}" for locale in TEMPLATE_LOCALES if locale not in spoken)
        yield from (
            f"{channel}.{locale}: is a language nobody is asked in" for locale in spoken.keys() - {*TEMPLATE_LOCALES}
        )
        told: dict[str, set[str]] = {}
        for locale, text in spoken.items():
            try:
                told[locale] = find_variables(f"{text.title or ''}\n{text.body}")
            except InvalidTemplateText as error:
                yield f"{channel}.{locale}: {error}"
        yield from variable_errors(channel, told, template.variables.keys())
        used |= {name for names in told.values() for name in names}
    yield from (f"variables: {name} is in no text" for name in sorted(template.variables.keys() - used))


def variable_errors(channel: NotificationChannel, used: Mapping[str, set[str]], declared: Any) -> Iterator[str]:
    everything = {name for names in used.values() for name in names}
    for locale, names in used.items():
        yield from (f"{channel}.{locale}: uses {name}, which is not declared" for name in sorted(names - declared))
        lacking = sorted((everything & declared) - names)
        yield from (f"{channel}.{locale}: does not say {name}, which another language says" for name in lacking)


async def register_templates(tx: Tx, catalogue: TemplateCatalogue) -> None:
    """Write the templates into the table, which requests and rules refer to; one that is unchanged writes nothing.

    A template that no file defines any more is retired: old requests still name it, new ones cannot.
    """
    templates = catalogue.all()
    changed = await tx.column(
        Q.register_templates,
        keys=[each.key for each in templates],
        categories=[each.category for each in templates],
        criticalities=[each.criticality for each in templates],
        variables=[deterministic_json(each.variables) for each in templates],
        texts=[deterministic_json(each.texts) for each in templates],
        checksums=[each.checksum for each in templates],
    )
    retired = await tx.column(Q.retire_templates, keys=[each.key for each in templates])
    if changed or retired:
        log.info("templates registered", changed=len(changed), retired=retired)


def deterministic_json(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
