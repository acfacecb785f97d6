"""Commands for services, tokens, keys, operators and the audit log."""
