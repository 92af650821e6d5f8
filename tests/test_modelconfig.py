"""The facts of config.json.

1. Values of ``text_config`` come before those of the outer object; null is no value.
2. The context length is a positive whole number, the embedding rows are the most that the file names.
"""

from typing import Any

import pytest

from turnkeeper.modelconfig import find_context_length, find_embedding_rows, iter_config_values


def test_values_of_the_language_model_come_first() -> None:
    config = {"a": 1, "b": 2, "text_config": {"a": None, "b": 3}}
    assert list(iter_config_values(config, "a", "b")) == [3, 1, 2]


@pytest.mark.parametrize("config", [{}, {"text_config": None}, {"text_config": []}, {"text_config": "x", "a": None}])
def test_a_file_without_the_fact_gives_no_value(config: dict[str, Any]) -> None:
    assert list(iter_config_values(config, "a")) == []
    assert find_context_length(config) is None
    assert find_embedding_rows(config) == 0


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 8}, 8),
        ({"max_position_embeddings": 8, "text_config": {"max_position_embeddings": 9}}, 9),
        ({"max_position_embeddings": 8, "text_config": {"max_position_embeddings": 0}}, 8),
        ({"max_position_embeddings": 8, "text_config": {"max_position_embeddings": "9"}}, 8),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": -1}, None),
    ],
)
def test_the_context_length_is_the_first_that_can_be_one(config: dict[str, Any], length: int | None) -> None:
    assert find_context_length(config) == length


def test_the_embedding_rows_are_the_most_that_the_file_names() -> None:
    assert find_embedding_rows({"vocab_size": 10, "text_config": {"vocab_size": 12}}) == 12
    assert find_embedding_rows({"vocab_size": 10, "text_config": {"vocab_size": "12"}}) == 10
