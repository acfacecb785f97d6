"""Templates: files, code and database use the same keys, and errors name their location."""

import asyncio
from pathlib import Path

import pytest

import pabal
from pabal.core.errors import Invalid, InvalidSettings
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.decision.decide import Criticality, NotificationCategory, NotificationChannel
from pabal.notifications.templates import catalogue as templates
from pabal.notifications.templates.catalogue import TemplateCatalogue, load_templates, register_templates
from pabal.notifications.templates.template import VariableType
from pabal.notifications.templates.unknown_keys import find_unknown_keys_in_code, find_unknown_keys_in_database
from support.notifications import draft_notification, register_builtin_templates, request_drafts, sql

CODE = Path(pabal.__file__).parent

VALID_TEMPLATE = """
category = "payment"

[variables]
item = "text"

[user_dm.ko]
title = "안내"
body = "{{ item }} 완료"

[user_dm.en]
title = "Note"
body = "{{ item }} is done"
"""
REQUIRED_KEYS = {
    "payment.succeeded",
    "payment.failed",
    "restore.completed",
    "antinuke.triggered",
    "antinuke.detected",
    "marketing.news",
    "system.audit_chain",
    "system.token_reuse",
    "system.dead_letters",
    "system.callbacks_failing",
    "system.no_transport",
    "system.storm_summary",
    "system.undelivered",
}


def write(folder: Path, text: str = VALID_TEMPLATE, key: str = "shop.sold") -> Path:
    path = folder / f"{key}.toml"
    path.write_text(text)
    return path


def test_builtin_templates_are_valid() -> None:
    builtin = load_templates()

    assert {template.key for template in builtin.all()} >= REQUIRED_KEYS
    triggered = builtin.get("antinuke.triggered")
    assert (triggered.category, triggered.criticality) == (NotificationCategory.ANTINUKE, Criticality.EMERGENCY)
    assert triggered.variables["count"] is VariableType.INTEGER
    assert {*triggered.texts} == {*NotificationChannel}


def test_the_code_uses_only_defined_templates() -> None:
    assert find_unknown_keys_in_code(CODE, load_templates()) == []


@pytest.mark.parametrize(
    "source",
    [
        'ask(template_key="shop.gone")',
        'Draft(template="shop.gone")',
        'hub.catalogue.get("shop.gone")',
        'self._catalogue.get("shop.gone")',
        'KEY = "system.gone"',
    ],
)
def test_an_undefined_template_in_code_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "shop.py").write_text(f"# a shop\n{source}\n")

    [key_error] = find_unknown_keys_in_code(tmp_path, load_templates())

    assert key_error.field == "shop.py:2"
    assert ".gone" in key_error.why


def test_defined_templates_and_other_strings_in_code_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        'hub.catalogue.get("payment.failed")\nKEY = "system.storm_summary"\nheaders.get("shop.x")\nsay("shop.x")\n'
    )

    assert find_unknown_keys_in_code(tmp_path, load_templates()) == []


LOOP = "{% for i in item %}x{% endfor %}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('[user_dm.en]\ntitle = "Note"\nbody = "{{ item }} is done"', "", "user_dm: has no text in en"),
        ("[user_dm.en]", "[user_dm.fr]", "user_dm.fr: unsupported language; use ko or en"),
        ("{{ item }} is done", "{{ item }} of {{ shop }}", "user_dm.en: uses shop, which is not declared"),
        ('item = "text"', 'item = "text"\nshop = "text"', "variables: shop is not used in any text"),
        ("{{ item }} is done", "done", "user_dm.en: does not use item, which another language uses"),
        ("{{ item }} is done", LOOP, "user_dm.en: line 2: for is not allowed in a text"),
        ("{{ item }} is done", "{{ item.__class__ }}", "user_dm.en: line 2: getattr is not allowed in a text"),
        ("{{ item }} is done", "{{ item['x'] }}", "user_dm.en: line 2: getitem is not allowed in a text"),
        ("{{ item }} is done", "{{ item() }}", "user_dm.en: line 2: call is not allowed in a text"),
        ("{{ item }} is done", "{{ item * 1000000000 }}", "user_dm.en: line 2: mul is not allowed in a text"),
        ("{{ item }} is done", "{% include item %}", "user_dm.en: line 2: include is not allowed in a text"),
        ("{{ item }} is done", "{% set x = item %}", "user_dm.en: line 2: assign is not allowed in a text"),
        ("{{ item }} is done", "{{ item | attr('x') }}", "unknown filter attr; available: grouped"),
        ("{{ item }} is done", "{{ item | upper(1) }}", "filter upper takes no arguments"),
        ("{{ item }} is done", "{{ item", "user_dm.en: line 2: unexpected end of template"),
        ('category = "payment"', 'category = "gossip"', "Invalid enum value 'gossip'"),
        ('category = "payment"', 'category = "payment"\ncriticality = "huge"', "Invalid enum value 'huge'"),
        (
            'category = "payment"',
            'category = "marketing"\ncriticality = "emergency"',
            "marketing cannot be an emergency",
        ),
        ('item = "text"', 'item = "list"', "Invalid enum value 'list'"),
        ('item = "text"', 'Item = "text"', "matching regex"),
        ('category = "payment"', 'category = "payment"\nshop = 1', "unknown field `shop`"),
        ('title = "Note"\n', 'title = ""\n', "length >= 1"),
        ("category", "= category", "Invalid statement"),
    ],
)
def test_an_invalid_template_is_reported_with_its_error(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in VALID_TEMPLATE
    write(tmp_path, VALID_TEMPLATE.replace(old, new))

    with pytest.raises(InvalidSettings) as error:
        load_templates(tmp_path)

    assert {key_error.field for key_error in error.value.errors} == {"shop.sold.toml"}
    assert any(message in key_error.why for key_error in error.value.errors), error.value.errors


def test_all_invalid_templates_are_reported_together(tmp_path: Path) -> None:
    write(tmp_path, 'category = "payment"\n')
    write(tmp_path, key="Shop Sold")

    with pytest.raises(InvalidSettings) as error:
        load_templates(tmp_path)

    assert {key_error.field for key_error in error.value.errors} == {"shop.sold.toml", "Shop Sold.toml"}


def test_an_operator_adds_and_replaces_templates(tmp_path: Path) -> None:
    write(tmp_path)
    builtin = (templates.BUILTIN_TEMPLATES / "marketing.news.toml").read_text()
    write(tmp_path, builtin.replace("(Ad)", "(Advertising)"), "marketing.news")

    catalogue = load_templates(tmp_path)

    assert catalogue.get("shop.sold").texts[NotificationChannel.USER_DM]["en"].body == "{{ item }} is done"
    assert (
        catalogue.get("marketing.news").texts[NotificationChannel.USER_DM]["en"].title == "(Advertising) {{ headline }}"
    )
    assert "shop.sold" not in load_templates()


def test_a_replaced_template_must_keep_its_variables(tmp_path: Path) -> None:
    write(tmp_path, key="system.storm_summary")

    with pytest.raises(InvalidSettings, match=r"system\.storm_summary\.toml: must declare the same variables"):
        load_templates(tmp_path)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="PABAL_TEMPLATES"):
        load_templates(tmp_path / "missing")


def test_an_unknown_template_key_is_invalid() -> None:
    with pytest.raises(Invalid, match=r"template_key: no such template: shop\.gone"):
        load_templates().get("shop.gone")


# In the database


def catalogue_of(*keys: str) -> TemplateCatalogue:
    builtin = load_templates()
    return TemplateCatalogue({key: builtin.get(key) for key in keys})


async def version_and_retired(database_urls: DatabaseUrls, key: str) -> tuple[int, bool]:
    columns = await sql(
        database_urls,
        "select array[version, (retired_at is not null)::int] from notification.templates where key = $1",
        key,
    )
    return columns[0], bool(columns[1])


@pytest.mark.anyio
async def test_registering_again_writes_only_changed_templates(
    hub: Hub, database_urls: DatabaseUrls, tmp_path: Path
) -> None:
    await register_builtin_templates(hub)
    xmin = await sql(database_urls, "select max(xmin::text) from notification.templates")
    await register_builtin_templates(hub)
    assert await sql(database_urls, "select max(xmin::text) from notification.templates where version = 1") == xmin

    builtin = (templates.BUILTIN_TEMPLATES / "marketing.news.toml").read_text()
    write(tmp_path, builtin.replace("(Ad)", "(Advertising)"), "marketing.news")
    async with hub.transaction() as tx:
        await register_templates(tx, load_templates(tmp_path))

    assert await version_and_retired(database_urls, "marketing.news") == (2, False)
    assert await version_and_retired(database_urls, "payment.failed") == (1, False)
    text = "select texts -> 'user_dm' -> 'en' ->> 'title' from notification.templates where key = 'marketing.news'"
    assert await sql(database_urls, text) == "(Advertising) {{ headline }}"


@pytest.mark.anyio
async def test_a_removed_template_is_retired_and_can_return(hub: Hub, database_urls: DatabaseUrls) -> None:
    await register_builtin_templates(hub)
    async with hub.transaction() as tx:
        await register_templates(tx, catalogue_of("payment.succeeded"))
    assert await version_and_retired(database_urls, "payment.failed") == (1, True)

    await register_builtin_templates(hub)
    assert await version_and_retired(database_urls, "payment.failed") == (2, False)


@pytest.mark.anyio
async def test_concurrent_registration_is_idempotent(hub: Hub, database_urls: DatabaseUrls) -> None:
    await asyncio.gather(*(register_builtin_templates(hub) for _ in range(8)))

    assert await sql(database_urls, "select count(*) from notification.templates where version = 1") == len(
        hub.templates.all()
    )


@pytest.mark.anyio
async def test_unknown_templates_in_use_are_found(hub: Hub, database_urls: DatabaseUrls) -> None:
    await register_builtin_templates(hub)
    await request_drafts(hub, draft_notification(hub))
    await sql(
        database_urls,
        "insert into notification.rules (name, event_pattern, template_key, recipients, channels) "
        "values ('r', 'order.*', 'marketing.news', '[\"user\"]', '{user_dm}')",
    )
    async with hub.autocommit() as tx:
        assert await find_unknown_keys_in_database(tx, hub.templates) == []
        errors = await find_unknown_keys_in_database(tx, catalogue_of("payment.failed"))
    assert [key_error.why.partition(" ")[0] for key_error in errors] == ["marketing.news", "payment.succeeded"]

    await sql(database_urls, "update notification.requests set state = 'suppressed', reason = 'cancelled'")
    async with hub.autocommit() as tx:
        errors = await find_unknown_keys_in_database(tx, catalogue_of("payment.failed"))
    assert [key_error.why.partition(" ")[0] for key_error in errors] == ["marketing.news"]
