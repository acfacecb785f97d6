import pytest

from pabal.db.queries import number_parameters, parse_queries


def test_parameters_are_numbered_and_a_repeated_one_keeps_its_number() -> None:
    sql, parameters = number_parameters("select :b, :a, :b")

    assert sql == "select $1, $2, $1"
    assert parameters == ("b", "a")


@pytest.mark.parametrize(
    "sql",
    [
        "select 'it''s :quoted'",
        "select 1 -- not :here",
        "select /* not\n:here */ 1",
        'select ":quoted"',
        "select x::text",
        "select $$ :body $$",
        "select $tag$ :body $$ :still $tag$",
        "select a[1:n]",
    ],
)
def test_text_that_only_looks_like_a_parameter_is_not_replaced(sql: str) -> None:
    assert number_parameters(sql) == (sql, ())


def test_a_parameter_may_have_a_cast() -> None:
    assert number_parameters("select :after::interval") == ("select $1::interval", ("after",))


def test_a_file_is_split_into_named_statements() -> None:
    first, second = parse_queries("-- name: one\nselect 1;\n\n-- name: two\n-- why\nselect :x;\n")

    assert (first.name, first.sql) == ("one", "select 1")
    assert (second.name, second.parameters) == ("two", ("x",))


def test_a_missing_or_unexpected_argument_is_a_type_error() -> None:
    [query] = parse_queries("-- name: one\nselect :x")

    with pytest.raises(TypeError, match="one needs x"):
        query.bind({})
    with pytest.raises(TypeError, match="does not take y"):
        query.bind({"x": 1, "y": 2})
