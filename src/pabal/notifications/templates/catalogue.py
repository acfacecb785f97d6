"""The template catalogue: load templates from files, check them, register them in the database."""

import tomllib
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
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
from pabal.notifications.decision.decide import Criticality, NotificationCategory, NotificationChannel
from pabal.notifications.templates.template import TEMPLATE_LOCALES, Template, TemplateText, VariableType
from pabal.notifications.templates.text_sandbox import InvalidTemplateText, find_variables

Q = load_queries(__file__)
log = get_logger()

TEMPLATE_SUFFIX = ".toml"
BUILTIN_TEMPLATES = Path(str(resources.files("pabal.notifications.templates") / "builtin"))

VariableName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,62}$(?!\n)")]
TemplateKey = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$(?!\n)", max_length=128)]
NonEmptyText = Annotated[str, msgspec.Meta(min_length=1)]


class TextSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text in a template file."""

    body: NonEmptyText
    title: NonEmptyText | None = None


class TemplateFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A template file: one section per channel and language."""

    category: NotificationCategory
    criticality: Criticality = Criticality.NORMAL
    variables: dict[VariableName, VariableType] = {}
    user_dm: dict[str, TextSection] = {}
    guild_audit_channel: dict[str, TextSection] = {}
    dashboard_toast: dict[str, TextSection] = {}


class TemplateCatalogue:
    """All templates by key."""

    def __init__(self, templates: Mapping[str, Template]) -> None:
        self._templates = dict(sorted(templates.items()))

    def get(self, key: str) -> Template:
        try:
            return self._templates[key]
        except KeyError:
            raise Invalid.of_field("template_key", f"no such template: {key[:128]}") from None

    def all(self) -> list[Template]:
        return [*self._templates.values()]

    def __contains__(self, key: object) -> bool:
        return key in self._templates


def load_templates(custom_folder: Path | None = None) -> TemplateCatalogue:
    """Load the built-in templates and those of the operator's folder. All errors are raised together."""
    builtin, builtin_errors = load_builtin_templates()
    templates, errors = {**builtin}, [*builtin_errors]
    if custom_folder is not None:
        if not custom_folder.is_dir():
            raise InvalidSettings(FieldError("PABAL_TEMPLATES", f"{custom_folder} is not a folder"))
        custom, custom_errors = load_template_folder(custom_folder)
        errors += custom_errors
        errors += [
            FieldError(f"{key}{TEMPLATE_SUFFIX}", "must declare the same variables as the built-in template")
            for key, template in custom.items()
            if key in templates and template.variables != templates[key].variables
        ]
        templates |= custom
    if errors:
        raise InvalidSettings(*errors)
    return TemplateCatalogue(templates)


@cache
def load_builtin_templates() -> tuple[dict[str, Template], list[FieldError]]:
    return load_template_folder(BUILTIN_TEMPLATES)


def load_template_folder(folder: Path) -> tuple[dict[str, Template], list[FieldError]]:
    templates: dict[str, Template] = {}
    errors: list[FieldError] = []
    for path in sorted(folder.glob(f"*{TEMPLATE_SUFFIX}")):
        try:
            template = load_template_file(path)
        except (msgspec.ValidationError, UnicodeDecodeError, tomllib.TOMLDecodeError, OSError) as error:
            errors.append(FieldError(path.name, str(error)))
            continue
        templates[template.key] = template
        errors += [FieldError(path.name, message) for message in template_errors(template)]
    return templates, errors


def load_template_file(path: Path) -> Template:
    content = path.read_bytes()
    key = msgspec.convert(path.name.removesuffix(TEMPLATE_SUFFIX), TemplateKey)
    file = msgspec.convert(tomllib.loads(content.decode()), TemplateFile)
    sections: dict[NotificationChannel, dict[str, TextSection]] = {
        channel: getattr(file, channel) for channel in NotificationChannel
    }
    return Template(
        key=key,
        category=file.category,
        criticality=file.criticality,
        variables=file.variables,
        texts={
            channel: {locale: TemplateText(section.body, section.title) for locale, section in by_locale.items()}
            for channel, by_locale in sections.items()
            if by_locale
        },
        checksum=sha256(content).hexdigest(),
    )


def template_errors(template: Template) -> Iterator[str]:
    """Check a template: languages that are missing or unsupported, variables that are undeclared or unused."""
    if not template.texts:
        yield "has no text"
    if template.category is NotificationCategory.MARKETING and template.criticality is Criticality.EMERGENCY:
        yield "marketing cannot be an emergency"
    used: set[str] = set()
    for channel, texts in template.texts.items():
        yield from (f"{channel}: has no text in {locale}" for locale in TEMPLATE_LOCALES if locale not in texts)
        yield from (
            f"{channel}.{locale}: unsupported language; use {' or '.join(TEMPLATE_LOCALES)}"
            for locale in texts.keys() - {*TEMPLATE_LOCALES}
        )
        variables: dict[str, set[str]] = {}
        for locale, text in texts.items():
            try:
                variables[locale] = find_variables(f"{text.title or ''}\n{text.body}")
            except InvalidTemplateText as error:
                yield f"{channel}.{locale}: {error}"
        yield from variable_errors(channel, variables, template.variables.keys())
        used |= {name for names in variables.values() for name in names}
    yield from (f"variables: {name} is not used in any text" for name in sorted(template.variables.keys() - used))


def variable_errors(
    channel: NotificationChannel, used: Mapping[str, set[str]], declared: AbstractSet[str]
) -> Iterator[str]:
    """Check the variables of one channel's texts, by language."""
    used_anywhere = {name for names in used.values() for name in names}
    for locale, names in used.items():
        yield from (f"{channel}.{locale}: uses {name}, which is not declared" for name in sorted(names - declared))
        missing = sorted((used_anywhere & declared) - names)
        yield from (f"{channel}.{locale}: does not use {name}, which another language uses" for name in missing)


async def register_templates(tx: Tx, catalogue: TemplateCatalogue) -> None:
    """Write the templates into the table that notifications and rules refer to. Unchanged ones are not written.

    A template without a file is retired: existing notifications keep it, new ones cannot use it.
    """
    templates = catalogue.all()
    changed = await tx.column(
        Q.register_templates,
        keys=[template.key for template in templates],
        categories=[template.category for template in templates],
        criticalities=[template.criticality for template in templates],
        variables=[deterministic_json(template.variables) for template in templates],
        texts=[deterministic_json(template.texts) for template in templates],
        checksums=[template.checksum for template in templates],
    )
    retired = await tx.column(Q.retire_templates, keys=[template.key for template in templates])
    if changed or retired:
        log.info("templates registered", changed=len(changed), retired=retired)


def deterministic_json(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
