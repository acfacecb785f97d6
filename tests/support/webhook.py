"""The webhook secret of the hub under test, as Kakao sends it."""

from pydantic import SecretStr

WEBHOOK_SECRET = SecretStr("the webhook secret of the tests")
WEBHOOK_HEADERS = {"content-type": "application/json", "x-pabal-secret": WEBHOOK_SECRET.get_secret_value()}
