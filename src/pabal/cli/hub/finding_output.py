"""How commands print findings."""

from pabal.core.finding import FindingLevel

LEVEL_STYLES = {FindingLevel.GOOD: "green", FindingLevel.WARNING: "yellow", FindingLevel.BAD: "red"}
