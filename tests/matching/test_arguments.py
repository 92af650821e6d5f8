"""Tool arguments as JSON values.

1. Two texts are equal as JSON objects by value and type, exactly.
2. Equal texts, and only those, have one spelling.
3. What a client changed is named, each kind once.
"""

import pytest

from turnkeeper.matching import RewriteKind
from turnkeeper.matching.arguments import are_arguments_equal, find_argument_rewrites, spell_arguments


@pytest.mark.parametrize(
    ("left", "right", "is_equal"),
    [
        pytest.param('{"path":"a","n":1.0,"t":"\\u4e2d"}', '{"n": 1.0, "path": "a", "t": "中"}', True, id="spelling"),
        pytest.param('{"n":1.0}', '{"n":1}', True, id="1.0 is 1"),
        pytest.param('{"n":1e2}', '{"n":100}', True, id="an exponent"),
        pytest.param('{"n":-0.0}', '{"n":0}', True, id="minus zero"),
        pytest.param('{"n":5000.0}', '{"n":5000}', True, id="5000.0 is 5000"),
        pytest.param('{"n":1}', '{"n":2}', False, id="2 for 1"),
        pytest.param('{"n":1}', '{"n":true}', False, id="true for 1"),
        pytest.param('{"n":0}', '{"n":false}', False, id="false for 0"),
        pytest.param('{"n":1}', '{"n":"1"}', False, id="a string for 1"),
        pytest.param('{"n":null}', "{}", False, id="null for nothing"),
        pytest.param('{"n":1,"n":1}', '{"n":1}', False, id="a repeated key"),
        pytest.param('{"a":{"n":1,"n":2}}', '{"a":{"n":2}}', False, id="a repeated key inside"),
        pytest.param('{"n":NaN}', '{"n": NaN}', False, id="NaN"),
        pytest.param('{"n":Infinity}', '{"n": Infinity}', False, id="Infinity"),
        pytest.param('{"n":12345678901234567890}', '{"n":12345678901234567000}', False, id="a lost digit"),
        pytest.param('{"n":12345678901234567890}', '{ "n":12345678901234567890}', True, id="twenty digits"),
        pytest.param('{"n":0.1}', '{"n":0.1000000000000000055}', False, id="digits behind the point"),
        pytest.param('{"n":1e999999999}', '{"n": 1e999999999}', True, id="a huge exponent"),
        pytest.param('{"n":1e9999999999999999999}', '{"n": 1e9999999999999999999}', False, id="beyond exponents"),
        pytest.param('{"a":[1,2]}', '{"a":[2,1]}', False, id="a list in another order"),
        pytest.param('{"a":[1,2]}', '{"a":[1]}', False, id="a shorter list"),
        pytest.param('{"a":{"b":[{"c":1}]}}', '{"a": {"b": [{"c": 1.0}]}}', True, id="nested"),
        pytest.param("[1]", "[1.0]", False, id="no object"),
        pytest.param("", "{}", True, id="nothing is the empty object"),
        pytest.param("{", "{ ", False, id="no JSON"),
        pytest.param('{"a":' * 100_000, '{ "a":' * 100_000, False, id="too deep"),
        pytest.param("{" * 9, "{" * 9, True, id="no JSON, but the same text"),
    ],
)
def test_arguments_are_equal_by_value_and_type(left: str, right: str, is_equal: bool) -> None:
    assert are_arguments_equal(left, right) is is_equal
    assert are_arguments_equal(right, left) is is_equal
    assert (spell_arguments(left) == spell_arguments(right)) is is_equal
    assert (find_argument_rewrites(left, right) == frozenset()) is is_equal


ADDED, REMOVED = RewriteKind.KEYS_ADDED, RewriteKind.KEYS_REMOVED
RETYPED, CHANGED, REPLACED = RewriteKind.VALUES_RETYPED, RewriteKind.VALUES_CHANGED, RewriteKind.ARGUMENTS_REPLACED


@pytest.mark.parametrize(
    ("stored", "replayed", "kinds"),
    [
        pytest.param('{"a":1}', '{"a":1,"replace_all":false}', {ADDED}, id="a default added"),
        pytest.param("", '{"limit":10}', {ADDED}, id="a default where there was nothing"),
        pytest.param('{"a":{"b":1}}', '{"a":{"b":1,"c":null}}', {ADDED}, id="a default inside"),
        pytest.param('{"a":[{"b":1}]}', '{"a":[{"b":1,"c":2}]}', {ADDED}, id="a default in a list"),
        pytest.param('{"a":1,"b":null}', '{"a":1}', {REMOVED}, id="a null left out"),
        pytest.param('{"a":1,"unknown":2}', "{}", {REMOVED}, id="everything left out"),
        pytest.param('{"old":1}', '{"new":1}', {ADDED, REMOVED}, id="a key renamed"),
        pytest.param('{"c":"cd /w && ls"}', '{"c":"ls"}', {CHANGED}, id="a text cut"),
        pytest.param('{"n":1}', '{"n":2}', {CHANGED}, id="another number"),
        pytest.param('{"n":1}', '{"n":true}', {CHANGED}, id="true for 1"),
        pytest.param('{"n":null}', '{"n":1}', {CHANGED}, id="a value for null"),
        pytest.param('{"a":[1,2]}', '{"a":[1]}', {CHANGED}, id="a shorter list"),
        pytest.param('{"a":"x"}', '{"a":["x"]}', {CHANGED}, id="a text put into a list"),
        pytest.param('{"b":"false"}', '{"b":false}', {RETYPED}, id="false from a string"),
        pytest.param('{"b":"null"}', '{"b":null}', {RETYPED}, id="null from a string"),
        pytest.param('{"n":"5.0"}', '{"n":5}', {RETYPED}, id="a number from a string"),
        pytest.param('{"n":5}', '{"n":"5"}', {RETYPED}, id="a number into a string"),
        pytest.param('{"a":"[1, 2]"}', '{"a":[1,2]}', {RETYPED}, id="a list from a string"),
        pytest.param('{"a":{"b":1}}', '{"a":"{\\"b\\": 1}"}', {RETYPED}, id="an object into a string"),
        pytest.param('{"b":"False"}', '{"b":false}', {CHANGED}, id="a string that is no JSON"),
        pytest.param('{"a":"[" }', '{"a":1}', {CHANGED}, id="a string that is broken JSON"),
        pytest.param('{"a":1,"b":"2","c":"x"}', '{"a":2,"b":2,"d":0}', {ADDED, REMOVED, RETYPED, CHANGED}, id="all"),
        pytest.param('{"a": broken', "{}", {REPLACED}, id="no JSON"),
        pytest.param('{"a":1,"a":2}', '{"a":2}', {REPLACED}, id="a repeated key"),
        pytest.param("[1]", "{}", {REPLACED}, id="no object"),
        pytest.param('{"a":NaN}', '{"a":null}', {REPLACED}, id="NaN"),
    ],
)
def test_what_was_changed_is_named(stored: str, replayed: str, kinds: set[RewriteKind]) -> None:
    assert find_argument_rewrites(stored, replayed) == kinds


def test_a_spelling_keeps_every_digit_and_every_kind_of_value() -> None:
    text = '{"b":[true,null,"é"],"a":-12345678901234567890.50,"z":{"n":0e5}}'
    spelled = '{"a":-123456789012345678905e-1,"b":[true,null,"\\u00e9"],"z":{"n":0}}'
    assert spell_arguments(text) == spelled
