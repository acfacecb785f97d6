"""The operators of the console: accounts, passwords, sessions."""
