"""What a text may say: words, variables, a few filters and `if`.

No loop, no call, no reaching into a value: a text takes no longer than it is long, whatever somebody writes into it.
"""

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
    """A number as people write amounts: 12,900."""
    return f"{value:,}"


TEXT_FILTERS: dict[str, Callable[..., Any]] = {"grouped": format_grouped, "upper": str.upper, "lower": str.lower}


class TextSandbox(ImmutableSandboxedEnvironment):
    """Jinja with nothing in it but our filters. `finalize` sees every value on its way into a text, not the words."""

    def __init__(self, finalize: Callable[[Any], str] | None = None) -> None:
        super().__init__(
            finalize=finalize, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False, cache_size=0
        )
        self.filters = dict(TEXT_FILTERS)
        self.tests = {}
        self.globals = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ARG002 of nothing, none
        return False

    def is_safe_callable(self, obj: Any) -> bool:  # noqa: ARG002 as above
        return False


TEXT_PARSER = TextSandbox()


class InvalidTemplateText(Exception):
    """A text says something a text may not say."""


def find_variables(source: str) -> set[str]:
    """The variables a text uses; a text that is none is Ungrammatical."""
    try:
        tree = TEXT_PARSER.parse(source)
    except TemplateSyntaxError as error:
        raise InvalidTemplateText(f"line {error.lineno}: {error.message}") from None
    for node in tree.find_all(nodes.Node):
        if not isinstance(node, ALLOWED_NODES):
            raise InvalidTemplateText(f"line {node.lineno}: {type(node).__name__.lower()} is not for texts")
        if isinstance(node, nodes.Filter) and (node.name not in TEXT_FILTERS or node.args or node.kwargs):
            raise InvalidTemplateText(
                f"line {node.lineno}: there is no filter {node.name}; there are {', '.join(TEXT_FILTERS)}"
            )
    return {node.name for node in tree.find_all(nodes.Name)}
