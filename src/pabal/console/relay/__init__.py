"""The relay's room: accounts, conversations, messages, callbacks that failed."""
