"""Relay pages: accounts, conversations, messages and failed callbacks."""
