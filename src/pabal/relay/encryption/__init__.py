"""Encryption of the texts that the relay stores."""
