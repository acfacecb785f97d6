"""A template: what a notice says, in each language and for each channel, and what it needs to be told for that."""

import ast
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, assert_never

import msgspec
from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pabal.core.errors import FieldError, Invalid, InvalidSettings
from pabal.core.log import get_logger
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import Criticality, NotificationCategory, NotificationChannel

TEMPLATE_LOCALES: tuple[str, ...] = ("ko", "en")
"""Every text is there in each of these."""


class VariableType(StrEnum):
    """What a variable may be: plain values, so that a text has nothing to reach into."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"

    def accepts(self, value: Any) -> bool:
        match self:
            case VariableType.TEXT:
                return isinstance(value, str)
            case VariableType.BOOLEAN:
                return isinstance(value, bool)
            case VariableType.NUMBER:
                return VariableType.INTEGER.accepts(value) or (isinstance(value, float) and math.isfinite(value))
            case VariableType.INTEGER:  # in JSON 1.0 is one as well
                return (isinstance(value, int) and not isinstance(value, bool)) or (
                    isinstance(value, float) and value.is_integer()
                )
            case _:
                assert_never(self)


@dataclass(frozen=True, slots=True)
class TemplateText:
    """What is said in one language through one channel."""

    body: str
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of notice, as a file defines it. `checksum` is the file's: equal means unchanged."""

    key: str
    category: NotificationCategory
    criticality: Criticality
    variables: Mapping[str, VariableType]
    texts: Mapping[NotificationChannel, Mapping[str, TemplateText]]
    checksum: str

    def payload_errors(self, payload: Mapping[str, Any]) -> list[FieldError]:
        """Which variables a payload lacks, or brings as something else. What it brings besides is passed over."""
        return [
            FieldError(
                f"payload.{name}",
                f"is not of the kind {kind}" if name in payload else f"is missing: {self.key} needs it, {kind}",
            )
            for name, kind in sorted(self.variables.items())
            if not kind.accepts(payload.get(name))
        ]


ALLOWED_NODES = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Const,
    nodes.Filter,
    nodes.If,
    nodes.CondExpr,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
)


def format_grouped(value: float) -> str:
    """A number as people write amounts: 12,900."""
    return f"{value:,}"


TEXT_FILTERS: dict[str, Callable[..., Any]] = {"grouped": format_grouped, "upper": str.upper, "lower": str.lower}


class TextSandbox(ImmutableSandboxedEnvironment):
    """Jinja with nothing in it but our filters. `finalize` sees every value on its way into a text, not the words."""

    def __init__(self, finalize: Callable[[Any], str] | None = None) -> None:
        super().__init__(
            finalize=finalize, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False, cache_size=0
        )
        self.filters = dict(TEXT_FILTERS)
        self.tests = {}
        self.globals = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ARG002 of nothing, none
        return False

    def is_safe_callable(self, obj: Any) -> bool:  # noqa: ARG002 as above
        return False


TEXT_PARSER = TextSandbox()


class InvalidTemplateText(Exception):
    """A text says something a text may not say."""


def find_variables(source: str) -> set[str]:
    """The variables a text uses; a text that is none is Ungrammatical."""
    try:
        tree = TEXT_PARSER.parse(source)
    except TemplateSyntaxError as error:
        raise InvalidTemplateText(f"line {error.lineno}: {error.message}") from None
    for node in tree.find_all(nodes.Node):
        if not isinstance(node, ALLOWED_NODES):
            raise InvalidTemplateText(f"line {node.lineno}: {type(node).__name__.lower()} is not for texts")
        if isinstance(node, nodes.Filter) and (node.name not in TEXT_FILTERS or node.args or node.kwargs):
            raise InvalidTemplateText(
                f"line {node.lineno}: there is no filter {node.name}; there are {', '.join(TEXT_FILTERS)}"
            )
    return {node.name for node in tree.find_all(nodes.Name)}


Q = load_queries(__file__)
log = get_logger()

TEMPLATE_SUFFIX = ".toml"
BUILTIN_TEMPLATES = Path(str(resources.files("pabal.notifications.templates") / "builtin"))

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


BUILTIN_KEY = re.compile(r"system\.[a-z0-9_]+")
"""Keys of the hub's own templates: a literal that looks like one is meant as one, wherever it stands."""
KEY_ARGUMENTS = ("template", "template_key")


def find_unknown_keys_in_code(folder: Path, catalogue: TemplateCatalogue) -> list[FieldError]:
    """Where code names a template that no file defines."""
    return [
        FieldError(f"{path.relative_to(folder)}:{line}", f"there is no template {key}")
        for path in sorted(folder.rglob("*.py"))
        for line, key in find_template_keys(path.read_text(encoding="utf-8"))
        if key not in catalogue
    ]


def find_template_keys(source: str) -> Iterator[tuple[int, str]]:
    """The template keys a module names: what is given as one, asked of a catalogue, or looks like one of ours."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.keyword(arg=name, value=ast.Constant(value=str(key))) if name in KEY_ARGUMENTS:
                yield node.value.lineno, key
            case ast.Call(func=ast.Attribute(value=catalogue, attr="get"), args=[ast.Constant(value=str(key)), *_]) if (
                ast.unparse(catalogue).rpartition(".")[2].strip("_") in {"catalogue", "templates"}
            ):
                yield node.lineno, key
            case ast.Constant(value=str(key)) if BUILTIN_KEY.fullmatch(key):
                yield node.lineno, key
            case _:
                continue


async def find_unknown_keys_in_database(tx: Tx, catalogue: TemplateCatalogue) -> list[FieldError]:
    """What rules and notices that still wait name, and no file defines."""
    known = [template.key for template in catalogue.all()]
    return [
        FieldError("notification.templates", f"{key} is asked for, and no file defines it")
        for key in await tx.column(Q.list_unknown_keys, keys=known)
    ]
