"""Field types of notifications that the API and the CLI share."""

from typing import Literal

RecipientType = Literal["user_dm", "guild_audit_channel", "dashboard_toast"]
NotificationState = Literal["pending", "sent", "failed", "suppressed"]
