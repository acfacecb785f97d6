"""Commands for accounts, pairing codes, conversations and messages."""
