"""The forms of a recipient's id and language. What can never be delivered is refused, with the name of the field."""

import re

from pabal.core.errors import Invalid

RECIPIENT_ID_FORM = r"([0-9]{1,20}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"
"""The id of a Discord user or channel, or the UUID of a registered user."""
RECIPIENT_ID_RULE = "must be a Discord id of up to 20 digits, or the UUID of a registered user"
RECIPIENT_PATTERN = re.compile(RECIPIENT_ID_FORM)
STORED_RECIPIENT_FORM = r"[A-Za-z0-9_.:@-]{1,64}"
"""Any id that the tables accept: whatever is stored can be shown, exported and erased."""
STORED_RECIPIENT_PATTERN = re.compile(STORED_RECIPIENT_FORM)
LOCALE_FORM = r"(ko|en)(-[A-Z]{2})?"
"""A language of TEMPLATE_LOCALES, with or without a region."""
LOCALE_RULE = "must be ko or en, with or without a region, such as en-US"
LOCALE_PATTERN = re.compile(LOCALE_FORM)


def check_person_id(person_id: str) -> str:
    """Return the id if a person can have it."""
    if not RECIPIENT_PATTERN.fullmatch(person_id):
        raise Invalid.of_field("person", RECIPIENT_ID_RULE)
    return person_id


def check_locale(locale: str) -> str:
    """Return the locale if every template has its texts in that language."""
    if not LOCALE_PATTERN.fullmatch(locale):
        raise Invalid.of_field("locale", LOCALE_RULE)
    return locale
