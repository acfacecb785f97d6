"""Notifications: from an event to people, as they prefer."""
