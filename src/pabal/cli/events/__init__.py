"""Commands for events, dead letters and subscriptions."""
