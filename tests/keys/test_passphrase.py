"""Secrets wrapped with a passphrase."""

import pytest

from pabal.core.errors import DecryptionError
from pabal.keys.passphrase import unwrap_secrets, wrap_secrets

pytestmark = pytest.mark.unit

SECRET = b"a secret of the hub"


def test_wrapped_secrets_need_the_passphrase() -> None:
    wrapped = wrap_secrets("correct horse", SECRET)

    assert SECRET not in wrapped
    assert wrapped != wrap_secrets("correct horse", SECRET)
    assert unwrap_secrets("correct horse", wrapped) == SECRET
    with pytest.raises(DecryptionError, match="the passphrase is wrong"):
        unwrap_secrets("incorrect horse", wrapped)


@pytest.mark.parametrize("change", ["v2.", "v1.AA", "", "v1..."])
def test_what_was_not_wrapped_here_is_refused(change: str) -> None:
    wrapped = wrap_secrets("correct horse", SECRET).decode()

    with pytest.raises(DecryptionError):
        unwrap_secrets("correct horse", wrapped.replace("v1.", change, 1).encode())
