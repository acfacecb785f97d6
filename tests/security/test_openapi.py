"""Generated requests to every operation of `/openapi.json`, with every kind of credential.

`tests/api/test_openapi.py` calls each operation often, with the credential it expects. Here every operation also meets
the credentials of the others: no response is a server error, and each one is documented.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.generation.case import Case
from schemathesis.specs.openapi.checks import ignored_auth, negative_data_rejection, positive_data_acceptance

from api.test_openapi import shorten_wait
from pabal.hub import DatabaseUrls
from relay.people import new_session
from security.owner_connection import OwnerConnection
from security.visitors import Visitors
from support.loop_thread import LoopThread, RawRequest
from support.oauth_client import bearer

pytestmark = pytest.mark.slow

EXAMPLES = {GenerationMode.POSITIVE: 3, GenerationMode.NEGATIVE: 2}
"""Cases per operation, each of which is called with every credential; generating invalid data is slow."""
EXCLUDED_CHECKS: list[Any] = [positive_data_acceptance, negative_data_rejection, ignored_auth]
"""A wrong credential is rejected before the data is read, so valid data may fail and invalid data may not be named."""


def credentials(served: LoopThread, visitors: Visitors) -> dict[str, dict[str, str]]:
    return {
        "a service token": visitors.token,
        "a relay token": visitors.relay.bearer,
        "a session token": bearer(served.run(new_session(served.hub)).token),
        "a person token": visitors.person,
    }


def test_every_operation_answers_every_credential_as_documented(
    served: LoopThread, visitors: Visitors, database_urls: DatabaseUrls
) -> None:
    document = json.loads(served.send(RawRequest("GET", "/openapi.json"))[1].partition(b"\r\n\r\n")[2])
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=served.origin)
    headers = credentials(served, visitors)
    violations: list[str] = []
    calls = 0
    with OwnerConnection(served, database_urls) as owner:
        for operation, mode in operations(schema):
            calls += call_operation(operation, mode, headers, owner, violations)

    assert not violations, "\n\n".join(violations)
    assert calls > len(headers) * len(document["paths"])


def operations(schema: Any) -> Iterator[tuple[Any, GenerationMode]]:
    """Every operation except streams, which stay open."""
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        raw = operation.definition.raw
        if any("text/event-stream" in response.get("content", {}) for response in raw["responses"].values()):
            continue
        has_input = raw.keys() & {"requestBody", "parameters"}
        yield from ((operation, mode) for mode in GenerationMode if has_input or mode.is_positive)


def call_operation(
    operation: Any,
    mode: GenerationMode,
    credentials: dict[str, dict[str, str]],
    owner: OwnerConnection,
    violations: list[str],
) -> int:
    calls = 0

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES[mode],
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    def call(case: Case[Any]) -> None:
        nonlocal calls
        shorten_wait(case)
        for name, credential in credentials.items():
            headers = {field.title(): value for field, value in credential.items()}
            calls += 1
            owner.reset_limits()
            response = case.call(headers=headers)
            try:
                case.validate_response(response, excluded_checks=EXCLUDED_CHECKS, headers=headers)
            except (FailureGroup, ExceptionGroup) as failures:
                violations.append(f"{operation.label} with {name}: {failures}")

    call()
    return calls
