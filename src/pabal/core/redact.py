"""Redaction of secrets inside free text: log lines, and the error texts that the hub stores."""

import re

SECRET_TEXT = re.compile(
    r"""
      [bB](?<!\w.)(?P<scheme>(?i:earer|asic)\s++)[\w.~+/=-]+     # an Authorization header
    | [bB](?<!\w.)(?P<bot>(?i:ot)\s++)[\w.-]{40,}+              # the same of Discord
    | :(?P<url>//[^:/@\s]*+:)(?:[^@\s/]|/(?!/))++(?=@)          # a password in a URL
    | /(?P<path>(?i:sessions)/++)[0-9a-fA-F]{16,}               # a session token in a path
    | [?&](?P<query>(?i:token|ticket|code)=)[^&\s"']+
    | [pP](?<!\w.)(?P<cookie>(?i:abal_(?:session|form|me|person|portal|chat))=)[^;\s"']+
    | [aAcCpPsStT](?P<pair>
        (?i:assw(?:or)?d|assphrase|wd|ecret|oken|redentials?|(?:pi|ccess|rivate)[_-]?key)
        (?:["']?\s?=\s?["']?|["']\s?:\s?["']?|(?<=[dD]):\s?))   # password=x, "secret": "x", password: x
        (?:(?<=")[^"\n]{1,1000}+|(?<=')[^'\n]{1,1000}+|[^\s"'&,;<>(){}\[\]]++)
    | [xX](?<!\w.)(?P<header>-(?:[a-zA-Z0-9]++-){0,4}(?i:secret|token|key|signature):\s?)[^\s"',;]++
    | -(?P<pem>----BEGIN\ [A-Z ]{0,30}KEY-----)[^-]++           # a private key
    | [pP](?<!\w.)(?i:b[rsapt]|rt)_[\w-]{8,}                     # our prefixed tokens
    | [wW](?<!\w.)(?i:hsec)_[\w+/=-]{8,}                        # a webhook signing secret
    | [eE](?<![\w-].)(?i:yj)[\w-]++\.[\w-]++\.[\w-]+            # a JWT
    """,
    re.VERBOSE,
)
"""No branch backtracks: the texts are untrusted and may be long. Each begins with characters, which the regex engine
checks before it tries the branch: that doubles the speed. The named group and the character before it are kept."""


def redact_text(text: str) -> str:
    """Replace secrets by `***`, in linear time."""
    return SECRET_TEXT.sub(_mask_secret, text)


def _mask_secret(match: re.Match[str]) -> str:
    return f"{match[0][0]}{match[match.lastgroup]}***" if match.lastgroup else "***"
