import pytest

from pabal.db.queries import number_parameters, parse_queries


def test_words_become_numbers_and_the_same_word_the_same_number() -> None:
    sql, takes = number_parameters("select :b, :a, :b")

    assert sql == "select $1, $2, $1"
    assert takes == ("b", "a")


@pytest.mark.parametrize(
    "untouched",
    [
        "select 'it''s :not a word'",
        "select 1 -- nor :here",
        "select /* nor\n:here */ 1",
        'select ":quoted"',
        "select x::text",
        "select $$ :body $$",
        "select $tag$ :body $$ :still $tag$",
        "select a[1:n]",
    ],
)
def test_what_only_looks_like_a_parameter_is_left_alone(untouched: str) -> None:
    assert number_parameters(untouched) == (untouched, ())


def test_a_cast_of_a_parameter_is_still_a_parameter() -> None:
    assert number_parameters("select :after::interval") == ("select $1::interval", ("after",))


def test_each_statement_of_a_file_is_found_by_its_name() -> None:
    first, second = parse_queries("-- name: one\nselect 1;\n\n-- name: two\n-- why\nselect :x;\n")

    assert (first.name, first.sql) == ("one", "select 1")
    assert (second.name, second.parameters) == ("two", ("x",))


def test_a_wrong_argument_is_a_mistake_in_the_code_and_says_which() -> None:
    [query] = parse_queries("-- name: one\nselect :x")

    with pytest.raises(TypeError, match="one needs x"):
        query.bind({})
    with pytest.raises(TypeError, match="does not take y"):
        query.bind({"x": 1, "y": 2})
