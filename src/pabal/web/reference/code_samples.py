"""Examples of every endpoint for the API reference: one for curl, one for Python.

They are built from the route and from `examples.toml`, which has bodies, query parameters and, where the Python client
has the call, its code. Values that differ between hubs are environment variables; `PABAL_URL` is the hub's address.
"""

import json
import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any, cast

from pabal.web.reference.field_descriptions import path_section
from pabal.web.route import HandlerAuth, Route

BASIC_AUTH_NAME, BASIC_AUTH_SECRET = "PABAL_SERVICE", "PABAL_SECRET"
VARIABLE = re.compile(r"\$([A-Z_]+)")
MAX_LINE = 84
"""Characters of a line in an example."""
MAX_VALUE_LINE = MAX_LINE - 16
"""Characters of a value, which may be indented."""
EVENT_STREAM = "text/event-stream"
NO_CONTENT = 204


@cache
def load_examples() -> dict[str, dict[str, Any]]:
    """The examples by the name of the handler; `paths` has the variables of path parameters."""
    return tomllib.loads(resources.files("pabal.web.reference").joinpath("examples.toml").read_text(encoding="utf-8"))


def build_code_samples(route: Route) -> list[dict[str, str]]:
    """The value of OpenAPI's extension `x-codeSamples`."""
    python = load_examples().get(route.name, {}).get("python", "").strip() or python_sample(route)
    return [
        {"lang": "Shell", "label": "curl", "source": curl_sample(route)},
        {"lang": "Python", "label": "Python", "source": python},
    ]


def curl_sample(route: Route) -> str:
    example = load_examples().get(route.name, {})
    words = ["curl"]
    if route.media_type == EVENT_STREAM:
        words.append("-N")
    if route.method != "GET" and not (route.method == "POST" and example.keys() & {"json", "form"}):
        words.append(f"-X {route.method}")
    url = f"$PABAL_URL{example_url_path(route)}"
    if query := example.get("query"):
        url += "?" + "&".join(f"{name}={value}" for name, value in query.items())
    lines = [f'{" ".join(words)} "{url}"']
    if uses_basic_auth(route):
        lines.append(f'-u "${BASIC_AUTH_NAME}:${BASIC_AUTH_SECRET}"')
    lines += [f'-H "{name}: {value}"' for name, value in example_headers(route).items()]
    lines += [f'-d "{name}={value}"' for name, value in example.get("form", {}).items()]
    if body := example.get("json"):
        lines.append('-H "Content-Type: application/json"')
        text = format_json(json.loads(body))
        lines.append(f"-d @- <<JSON\n{text}\nJSON" if VARIABLE.search(text) else f"-d '{text}'")
    return " \\\n  ".join(lines)


def python_sample(route: Route) -> str:
    example = load_examples().get(route.name, {})
    arguments = [python_value(f"$PABAL_URL{example_url_path(route)}")]
    if query := example.get("query"):
        arguments.append(f"params={python_value(query)}")
    if uses_basic_auth(route):
        arguments.append(f"auth=({python_value(f'${BASIC_AUTH_NAME}')}, {python_value(f'${BASIC_AUTH_SECRET}')})")
    if headers := example_headers(route):
        arguments.append(f"headers={python_value(headers)}")
    if form := example.get("form"):
        arguments.append(f"data={python_value(form)}")
    if body := example.get("json"):
        arguments.append(f"json={python_value(json.loads(body))}")
    imports = "import os\n\nimport httpx2\n\n"
    if route.media_type == EVENT_STREAM:
        call = format_call("httpx2.stream", [python_value(route.method), *arguments])
        return (
            f"{imports}with {call} as response:\n"
            "    for line in response.iter_lines():\n        print(line)\n        break  # or read on"
        )
    call = format_call(f"httpx2.{route.method.lower()}", arguments)
    return f"{imports}response = {call}\n{python_result(route)}"


def python_result(route: Route) -> str:
    if route.status == NO_CONTENT or route.response_type is type(None):
        return "response.raise_for_status()"
    suffix = "json()" if route.media_type == "application/json" else "text"
    return f"print(response.raise_for_status().{suffix})"


def example_url_path(route: Route) -> str:
    """The path with a variable for each parameter."""
    variables = load_examples()["paths"]
    path = route.path
    for name in route.path_types:
        path = path.replace(f"{{{name}}}", f"${variables.get(path_section(route, name), name.upper())}")
    return path


def example_headers(route: Route) -> dict[str, str]:
    """The header with the credential that the route requires."""
    if route.permission:
        return {"Authorization": "Bearer $PABAL_TOKEN"}
    if route.person_auth:
        return {"Authorization": "Bearer $PERSON_TOKEN"}
    if route.relay_auth or route.handler_auth is HandlerAuth.RELAY:
        return {"Authorization": "Bearer $RELAY_TOKEN"}
    if route.handler_auth is HandlerAuth.WEBHOOK:
        return {"X-Pabal-Secret": "$WEBHOOK_SECRET"}
    return {}


def uses_basic_auth(route: Route) -> bool:
    return route.handler_auth is HandlerAuth.SECRET


def format_json(value: Any) -> str:
    """Every object and list on one line if it is short."""
    match value:
        case dict():
            entries = cast("dict[str, Any]", value)
            return wrap_items("{", [f"{json.dumps(name)}: {format_json(item)}" for name, item in entries.items()], "}")
        case list():
            elements = cast("list[Any]", value)
            return wrap_items("[", [format_json(item) for item in elements], "]")
        case _:
            return json.dumps(value, ensure_ascii=False)


def format_call(function: str, arguments: list[str]) -> str:
    """On one line if it is short."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= MAX_LINE and "\n" not in line:
        return line
    indented = ",\n".join(arguments).replace("\n", "\n    ")
    return f"{function}(\n    {indented},\n)"


def python_value(value: Any) -> str:
    """The value as Python code; variables come from the environment."""
    match value:
        case str():
            return python_text(value)
        case dict():
            entries = cast("dict[str, Any]", value)
            items = [f"{python_text(name)}: {python_value(item)}" for name, item in entries.items()]
            return wrap_items("{", items, "}", last_comma=",")
        case list():
            elements = cast("list[Any]", value)
            return wrap_items("[", [python_value(item) for item in elements], "]", last_comma=",")
        case _:
            return repr(value)


def wrap_items(opening: str, items: list[str], closing: str, last_comma: str = "") -> str:
    line = f"{opening}{', '.join(items)}{closing}"
    if len(line) <= MAX_VALUE_LINE and "\n" not in line:
        return line
    indented = ",\n".join(items).replace("\n", "\n    ")
    return f"{opening}\n    {indented}{last_comma}\n{closing}"


def python_text(text: str) -> str:
    if whole := VARIABLE.fullmatch(text):
        return f'os.environ["{whole[1]}"]'
    quoted = json.dumps(text, ensure_ascii=False)
    if not VARIABLE.search(text):
        return quoted
    return "f" + VARIABLE.sub(lambda match: f"{{os.environ['{match[1]}']}}", quoted)
