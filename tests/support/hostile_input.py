"""Values that are slow for careless code: for regular expressions, normalisation, escaping and number parsing."""

HOSTILE_UNITS = {
    "letters": "a",
    "capitals": "A",
    "digits": "9",
    "zeros": "0",
    "dots": "a.",
    "stars": "*a",
    "dashes": "a-",
    "colons": "a:",
    "slashes": "a/",
    "commas": "a,",
    "equals": "a=",
    "quotes": '"',
    "tags": "<",
    "ampersands": "&",
    "backslashes": "\\",
    "brackets": "[",
    "braces": "{{",
    "spaces": " ",
    "line breaks": "\n",
    "control characters": "\x01",
    "combining marks": "e\u0301\u0323",
    "a run of combining marks": "\u0301\u0323",
    "dashes of phones": "\u2010",
    "jamo": "\u1112\u1161\u11ab",
    "compatibility forms": "\ufdfa",
    "emoji": "\U0001f40e",
}
"""A unit is repeated up to the length that is wanted. A last character that does not fit makes a near miss."""


def hostile_text(unit: str, length: int) -> str:
    return (unit * (length // len(unit) + 1))[: length - 1] + "!"


def hostile_texts(length: int) -> dict[str, str]:
    return {name: hostile_text(unit, length) for name, unit in HOSTILE_UNITS.items()}


def hostile_documents(size: int) -> dict[str, bytes]:
    """JSON documents of about this size that are slow to parse, to validate or to search."""
    return {
        "open lists": b"[" * size,
        "nested lists": b"[" * (size // 2) + b"]" * (size // 2),
        "nested objects": b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
        "a long integer": b"9" * size,
        "a long negative integer": b"-" + b"9" * size,
        "an integer of 4,300 digits, often": join_items(b"9" * 4300, size),
        "a long fraction": b"0." + b"9" * size,
        "a large exponent": b"1e" + b"9" * size,
        "a list of ones": join_items(b"1", size),
        "a list of lists": join_items(b"[]", size),
        "a list of objects": join_items(b"{}", size),
        "a list of small objects": join_items(b'{"a":1}', size),
        "a list of texts": join_items(b'""', size),
        "an object with many keys": b"{" + b",".join(b'"%x":1' % number for number in range(size // 9)) + b"}",
        "the same key": b"{" + b",".join([b'"a":1'] * (size // 6)) + b"}",
        "escapes": b'"' + b"\\u00e9" * (size // 6) + b'"',
        "backslashes": b'"' + b"\\\\" * (size // 2) + b'"',
        "backslashes before a NUL": b'"' + b"\\\\" * (size // 2) + b'\\\\u0000"',
        "almost NUL": b'"' + b"\\\\u0000" * (size // 7) + b'"',
        "NUL": b'"' + b"\\u0000" * (size // 6) + b'"',
        "surrogates": b'"' + b"\\ud83d\\ude00" * (size // 12) + b'"',
        "not UTF-8": b'"' + b"\xff" * size + b'"',
        "blanks": b" " * size,
    }


def join_items(item: bytes, size: int) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"
