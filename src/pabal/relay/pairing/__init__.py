"""How a conversation becomes connected to an account: codes, pairing, sessions."""
