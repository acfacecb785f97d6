"""Pairing: codes, sessions, and how a conversation is connected to an account."""
