"""What is stored of a secret: enough to know it again, not enough to say it."""

import hashlib


def hash_secret(secret: str) -> str:
    """SHA-256, plain: our secrets are 256 random bits, which no dictionary holds."""
    return hashlib.sha256(secret.encode()).hexdigest()
