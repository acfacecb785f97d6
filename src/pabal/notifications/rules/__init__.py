"""Rules: which events cause which notifications."""
