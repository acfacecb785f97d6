"""The values of the state columns, as rows hold them."""

from typing import Literal

NotificationState = Literal["pending", "sent", "failed", "suppressed"]
FailureReason = Literal["exhausted", "refused", "unknown", "unrenderable"]
"""Why a notification failed. `unknown`: the worker disappeared, so it may have been delivered."""
NotificationReason = Literal[
    FailureReason,
    "dm_disabled",
    "category_off",
    "duplicate",
    "address_unhealthy",
    "expired",
    "storm",
    "cancelled",
    "no_transport",
]
"""Why a notification failed or was suppressed. The latter are the values of `SuppressReason`."""
AttemptOutcome = Literal["done", "retry", "snooze", "dead", "suppressed", "unknown"]
RecipientType = Literal["user_dm", "guild_audit_channel", "dashboard_toast"]
"""The values of `NotificationChannel`."""
CategoryName = Literal["payment", "recovery", "antinuke", "marketing", "system"]
"""The values of `NotificationCategory`."""
CriticalityName = Literal["normal", "important", "emergency"]
"""The values of `Criticality`."""
Priority = Literal[1, 3, 5]
"""Emergency, important, normal: see `Criticality.priority`."""
