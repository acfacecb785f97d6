"""The API reference is complete: every field and parameter has a description, every endpoint its examples."""

import re
from collections.abc import Iterator
from typing import Any

from pabal.api import routes
from pabal.web.reference.code_samples import load_examples
from pabal.web.reference.field_descriptions import SHARED_SECTION, load_field_descriptions, path_section, query_sections
from pabal.web.reference.openapi import build_openapi

DOCUMENT = build_openapi(routes.ROUTES)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
DURATION = re.compile(
    r"(?<![a-z])(wait|lease|timeout|delay|interval|lifetime|duration|expires_?in|retry_after)", re.IGNORECASE
)
STATE_FIELDS = frozenset(
    (
        "category",
        "criticality",
        "database",
        "event_status",
        "kind",
        "mode",
        "outcome",
        "reason",
        "role",
        "state",
        "status",
    )
)
UNIT = re.compile(r"second|minute|hour|day|millisecond", re.IGNORECASE)


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def numbers() -> Iterator[tuple[str, str]]:
    """The name and the description of every numeric field and parameter."""
    for name, schema in SCHEMAS.items():
        for field, keywords in schema.get("properties", {}).items():
            if is_number(keywords):
                yield f"{name}.{field}", keywords["description"]
    for name, operation in operations():
        for parameter in operation.get("parameters", []):
            if is_number(parameter["schema"]):
                yield f"{name} {parameter['name']}", parameter["description"]


def is_number(schema: dict[str, Any]) -> bool:
    return any(option.get("type") in {"integer", "number"} for option in schema.get("anyOf", [schema]))


def test_every_field_has_a_description() -> None:
    fields = [(name, field, text) for name, schema in SCHEMAS.items() for field, text in schema["properties"].items()]

    assert len(fields) > 500
    assert [f"{name}.{field}" for name, field, text in fields if not text.get("description")] == []


def test_every_parameter_has_a_description() -> None:
    parameters = [
        (name, parameter) for name, operation in operations() for parameter in operation.get("parameters", [])
    ]

    assert len(parameters) > 70
    assert [f"{name}: {parameter['name']}" for name, parameter in parameters if not parameter.get("description")] == []


def test_every_duration_says_its_unit() -> None:
    durations = [(name, text) for name, text in numbers() if DURATION.search(name.rpartition(".")[2])]

    assert len(durations) > 10
    assert [name for name, text in durations if not UNIT.search(text)] == []


DURATIONS_WITHOUT_A_UNIT = {
    "EventClaimBody.wait",
    "EventNackBody.retry_after",
    "GET /openclaw/messages lease",
    "GET /openclaw/messages wait",
    "GET /v1/messages lease",
    "GET /v1/messages wait",
    "RelayMessageExtendBody.lease",
    "RelaySessionView.expiresIn",
    "TokenPairView.expires_in",
}
"""Names of before, and of standards. A new field names its unit, such as `wait_seconds`."""


def test_a_new_duration_has_its_unit_in_its_name() -> None:
    durations = {name for name, _ in numbers() if DURATION.search(name.rpartition(".")[2])}

    assert {name for name in durations if not re.search(r"(_s|S)econds$|_ms$", name)} == (DURATIONS_WITHOUT_A_UNIT)


def test_every_time_that_is_a_text_has_the_format_of_one() -> None:
    texts = {
        f"{name}.{field}": option.get("format")
        for name, schema in SCHEMAS.items()
        for field, keywords in schema.get("properties", {}).items()
        for option in keywords.get("anyOf", [keywords])
        if option.get("type") == "string" and re.search(r"(At|_at|_until|^since|^until)$", field)
    }

    assert len(texts) > 60
    assert {name for name, kind in texts.items() if kind != "date-time"} == set()


def test_every_point_in_time_that_is_a_number_says_its_unit() -> None:
    times = [(name, text) for name, text in numbers() if re.search(r"(At|_at|timestamp|\.(iat|nbf|exp))$", name)]

    assert len(times) > 5
    assert [name for name, text in times if not re.search(r"epoch (milli)?seconds", text)] == []


def test_the_summary_of_an_operation_begins_with_the_verb_of_its_method() -> None:
    verbs = {
        "GET": r"Get|List|Check|Group|Export|Fetch|Receive|Stream",
        "PATCH": r"Change",
        "DELETE": r"Remove|Erase|Withdraw",
    }
    wrong = [
        f"{name}: {operation['summary']}"
        for name, operation in operations()
        if (pattern := verbs.get(name.split()[0])) and not re.match(rf"({pattern})\b", operation["summary"])
    ]

    assert wrong == []


def test_every_operation_with_credentials_names_them() -> None:
    guarded = [(name, operation) for name, operation in operations() if operation.get("security")]

    assert len(guarded) > 60
    for name, operation in guarded:
        text = operation["description"]
        permissions = [scope for option in operation["security"] for scope in option.get("token", [])]
        assert "Requires " in text, name
        assert [permission for permission in permissions if f"`{permission}`" not in text] == [], name


def test_every_operation_has_an_example_for_curl_and_for_python() -> None:
    for name, operation in operations():
        assert [sample["label"] for sample in operation["x-codeSamples"]] == ["curl", "Python"], name
        assert all(sample["source"] for sample in operation["x-codeSamples"]), name


def test_no_description_is_left_of_a_field_that_is_gone() -> None:
    fields = {name: {*schema["properties"]} for name, schema in SCHEMAS.items()}
    for route in routes.ROUTES:
        for name in route.path_types:
            fields.setdefault(path_section(route, name), set()).add(name)
        if route.query_type:
            for section in query_sections(route.query_type):
                fields.setdefault(section, set()).update(route.query_type.__struct_encode_fields__)
    fields[SHARED_SECTION] = set().union(*fields.values())

    stale = [
        f"{section}.{field}"
        for section, texts in load_field_descriptions().items()
        for field in texts
        if field not in fields.get(section, set())
    ]
    assert stale == []


def test_no_example_is_left_of_an_endpoint_that_is_gone() -> None:
    examples = {*load_examples()} - {"paths"}

    assert examples - {route.name for route in routes.ROUTES} == set()


def test_every_state_lists_its_values() -> None:
    states = {
        f"{name}.{field}": keywords.get("anyOf", [keywords])
        for name, schema in SCHEMAS.items()
        for field, keywords in schema["properties"].items()
        if field in STATE_FIELDS and not is_number(keywords)
    }

    assert len(states) > 20
    assert [name for name, options in states.items() if not any("enum" in option for option in options)] == []
