"""The Jinja subset that texts may use: variables, a few filters and conditions."""

from collections.abc import Callable
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

ALLOWED_NODES = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Const,
    nodes.Filter,
    nodes.If,
    nodes.CondExpr,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
)


def format_grouped(value: float) -> str:
    """Format a number with thousands separators: 12,900."""
    return f"{value:,}"


TEXT_FILTERS: dict[str, Callable[..., Any]] = {"grouped": format_grouped, "upper": str.upper, "lower": str.lower}


class TextSandbox(ImmutableSandboxedEnvironment):
    """Jinja with nothing but our filters. `finalize` formats every inserted value, not the text around it."""

    def __init__(self, finalize: Callable[[Any], str] | None = None) -> None:
        super().__init__(
            finalize=finalize, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False, cache_size=0
        )
        self.filters = dict(TEXT_FILTERS)
        self.tests = {}
        self.globals = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ARG002 none is safe
        return False

    def is_safe_callable(self, obj: Any) -> bool:  # noqa: ARG002 none is safe
        return False


TEXT_PARSER = TextSandbox()


class InvalidTemplateText(Exception):
    """A text does not parse, or uses what texts may not use."""


def find_variables(source: str) -> set[str]:
    """Return the variables a text uses. Raise InvalidTemplateText if it is not allowed."""
    try:
        tree = TEXT_PARSER.parse(source)
    except TemplateSyntaxError as error:
        raise InvalidTemplateText(f"line {error.lineno}: {error.message}") from None
    for node in tree.find_all(nodes.Node):
        if not isinstance(node, ALLOWED_NODES):
            raise InvalidTemplateText(f"line {node.lineno}: {type(node).__name__.lower()} is not allowed in a text")
        if isinstance(node, nodes.Filter):
            if node.name not in TEXT_FILTERS:
                raise InvalidTemplateText(
                    f"line {node.lineno}: unknown filter {node.name}; available: {', '.join(TEXT_FILTERS)}"
                )
            if node.args or node.kwargs:
                raise InvalidTemplateText(f"line {node.lineno}: filter {node.name} takes no arguments")
    return {node.name for node in tree.find_all(nodes.Name)}
