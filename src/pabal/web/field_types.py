"""Text types of fields, those of requests with a length limit.

A limit is checked before a pattern, a query or any other code reads the text. A house test checks that every text, list
and object of the route table has one.
"""

from typing import Annotated

from msgspec import Meta, Raw

FilterText = Annotated[str, Meta(max_length=255)]
"""A value to search for: a name, a type, a signature, an id."""
CursorText = Annotated[str, Meta(max_length=255)]
"""A cursor of `core.cursor`, which has about 100 characters."""
KeyCursorText = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,6000}$(?!\n)")]
"""A cursor that contains a conversation key: 1,025 characters of up to four bytes, in base64."""
CredentialText = Annotated[str, Meta(max_length=4096)]
"""A token or a secret. Our access tokens have about 1,000 characters."""
WordText = Annotated[str, Meta(max_length=100)]
"""One of a few known words."""
IdText = Annotated[str, Meta(max_length=64)]
"""An id; a UUID has at most 45 characters."""
ConversationKey = Annotated[str, Meta(max_length=1100)]
"""A channel and a user key of up to 512 characters each."""

TimeText = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A time that is formatted already."""
RawPayload = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
"""An object that is passed on as it is."""
