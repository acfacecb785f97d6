"""What a text may say: words, variables, a few filters and `if`.

No loop, no call, no reaching into a value: a text takes no longer than it is long, whatever somebody writes into it.
"""

from collections.abc import Callable
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

ALLOWED = (
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


def grouped(value: float) -> str:
    """A number as people write amounts: 12,900."""
    return f"{value:,}"


FILTERS: dict[str, Callable[..., Any]] = {"grouped": grouped, "upper": str.upper, "lower": str.lower}


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja with nothing in it but our filters. `finalize` sees every value on its way into a text, not the words."""

    def __init__(self, finalize: Callable[[Any], str] | None = None) -> None:
        super().__init__(
            finalize=finalize, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False, cache_size=0
        )
        self.filters = dict(FILTERS)
        self.tests = {}
        self.globals = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ARG002 of nothing, none
        return False

    def is_safe_callable(self, obj: Any) -> bool:  # noqa: ARG002 as above
        return False


READER = Sandbox()


class Ungrammatical(Exception):
    """A text says something a text may not say."""


def variables_in(source: str) -> set[str]:
    """The variables a text uses; a text that is none is Ungrammatical."""
    try:
        tree = READER.parse(source)
    except TemplateSyntaxError as error:
        raise Ungrammatical(f"line {error.lineno}: {error.message}") from None
    for node in tree.find_all(nodes.Node):
        if not isinstance(node, ALLOWED):
            raise Ungrammatical(f"line {node.lineno}: {type(node).__name__.lower()} is not for texts")
        if isinstance(node, nodes.Filter) and (node.name not in FILTERS or node.args or node.kwargs):
            raise Ungrammatical(f"line {node.lineno}: there is no filter {node.name}; there are {', '.join(FILTERS)}")
    return {node.name for node in tree.find_all(nodes.Name)}
