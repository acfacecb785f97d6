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

from pabal.core.errors import Invalid, Misconfigured, Mistake
from pabal.core.log import get_logger
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.grammar import Ungrammatical, variables_in
from pabal.notifications.plan import Category, Channel, Criticality
from pabal.notifications.template import LOCALES, Kind, Template, Text

Q = beside(__file__)
log = get_logger()

ENDING = ".toml"
OURS = Path(str(resources.files("pabal.notifications") / "templates"))

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Key = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$", max_length=128)]
Words = Annotated[str, msgspec.Meta(min_length=1)]


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text, as a file has it."""

    body: Words
    title: Words | None = None


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A template, as a file has it: a section for each channel and language."""

    category: Category
    criticality: Criticality = Criticality.NORMAL
    variables: dict[Name, Kind] = {}
    user_dm: dict[str, Said] = {}
    guild_audit_channel: dict[str, Said] = {}
    dashboard_toast: dict[str, Said] = {}


class Catalogue:
    """The templates by their keys."""

    def __init__(self, templates: Mapping[str, Template]) -> None:
        self._templates = dict(sorted(templates.items()))

    def get(self, key: str) -> Template:
        try:
            return self._templates[key]
        except KeyError:
            raise Invalid.one("template_key", f"there is no template {key[:128]}") from None

    def all(self) -> list[Template]:
        return [*self._templates.values()]

    def __contains__(self, key: object) -> bool:
        return key in self._templates


def read(own: Path | None = None) -> Catalogue:
    """Read our templates and those of the operator's folder; everything wrong with any of them is told together."""
    ours, wrong = shipped()
    templates, mistakes = {**ours}, [*wrong]
    if own is not None:
        if not own.is_dir():
            raise Misconfigured(Mistake("PABAL_TEMPLATES", f"{own} is not a folder"))
        theirs, more = read_folder(own)
        mistakes += more
        mistakes += [
            Mistake(f"{key}{ENDING}", "has other variables than the template it stands for")
            for key, each in theirs.items()
            if key in templates and each.variables != templates[key].variables
        ]
        templates |= theirs
    if mistakes:
        raise Misconfigured(*mistakes)
    return Catalogue(templates)


@cache
def shipped() -> tuple[dict[str, Template], list[Mistake]]:
    return read_folder(OURS)


def read_folder(folder: Path) -> tuple[dict[str, Template], list[Mistake]]:
    templates: dict[str, Template] = {}
    mistakes: list[Mistake] = []
    for path in sorted(folder.glob(f"*{ENDING}")):
        try:
            template = read_file(path)
        except (msgspec.ValidationError, UnicodeDecodeError, tomllib.TOMLDecodeError, OSError) as error:
            mistakes.append(Mistake(path.name, str(error)))
            continue
        templates[template.key] = template
        mistakes += [Mistake(path.name, why) for why in faults(template)]
    return templates, mistakes


def read_file(path: Path) -> Template:
    content = path.read_bytes()
    key = msgspec.convert(path.name.removesuffix(ENDING), Key)
    written = msgspec.convert(tomllib.loads(content.decode()), Written)
    sections: dict[Channel, dict[str, Said]] = {channel: getattr(written, channel) for channel in Channel}
    return Template(
        key=key,
        category=written.category,
        criticality=written.criticality,
        variables=written.variables,
        texts={
            channel: {locale: Text(said.body, said.title) for locale, said in spoken.items()}
            for channel, spoken in sections.items()
            if spoken
        },
        checksum=sha256(content).hexdigest(),
    )


def faults(template: Template) -> Iterator[str]:
    """What is wrong with a template by itself: a language or a variable that is missing, or one nobody uses."""
    if not template.texts:
        yield "has no text"
    if template.category is Category.MARKETING and template.criticality is Criticality.EMERGENCY:
        yield "is advertising, which is no emergency"
    used: set[str] = set()
    for channel, spoken in template.texts.items():
        yield from (f"{channel}: has no text in {locale}" for locale in LOCALES if locale not in spoken)
        yield from (f"{channel}.{locale}: is a language nobody is asked in" for locale in spoken.keys() - {*LOCALES})
        told: dict[str, set[str]] = {}
        for locale, text in spoken.items():
            try:
                told[locale] = variables_in(f"{text.title or ''}\n{text.body}")
            except Ungrammatical as error:
                yield f"{channel}.{locale}: {error}"
        yield from differences(channel, told, template.variables.keys())
        used |= {name for names in told.values() for name in names}
    yield from (f"variables: {name} is in no text" for name in sorted(template.variables.keys() - used))


def differences(channel: Channel, told: Mapping[str, set[str]], declared: Any) -> Iterator[str]:
    everything = {name for names in told.values() for name in names}
    for locale, names in told.items():
        yield from (f"{channel}.{locale}: uses {name}, which is not declared" for name in sorted(names - declared))
        lacking = sorted((everything & declared) - names)
        yield from (f"{channel}.{locale}: does not say {name}, which another language says" for name in lacking)


async def register(tx: Tx, catalogue: Catalogue) -> None:
    """Write the templates into the table, which requests and rules refer to; one that is unchanged writes nothing.

    A template that no file defines any more is retired: old requests still name it, new ones cannot.
    """
    templates = catalogue.all()
    changed = await tx.column(
        Q.register,
        keys=[each.key for each in templates],
        categories=[each.category for each in templates],
        criticalities=[each.criticality for each in templates],
        variables=[as_json(each.variables) for each in templates],
        texts=[as_json(each.texts) for each in templates],
        checksums=[each.checksum for each in templates],
    )
    retired = await tx.column(Q.retire, keys=[each.key for each in templates])
    if changed or retired:
        log.info("templates registered", changed=len(changed), retired=retired)


def as_json(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
