"""The tool declarations of DeepSeek V3.2 and V4, in the words that the models were trained on.

The words are taken from the V3.2 and V4 encoders in PyPI ``llama-cpp-python`` and ``renderers``; other words would be
another prompt.
"""

from collections.abc import Sequence
from typing import Any

from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering.message import render_json


def _render_example(block: str, names: tuple[str, str, str]) -> str:
    first, parameter, second = names
    return (
        f"<｜DSML｜{block}>\n"
        f'<｜DSML｜invoke name="${first}">\n'
        f'<｜DSML｜parameter name="${parameter}" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>\n'
        "...\n</｜DSML｜invoke>\n"
        f'<｜DSML｜invoke name="${second}">\n...\n</｜DSML｜invoke>\n'
        f"</｜DSML｜{block}>\n"
    )


_V32 = (
    "## Tools\n\nYou have access to a set of tools you can use to answer the user's question.\n"
    'You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply '
    "to the user:\n"
    + _render_example("function_calls", ("FUNCTION_NAME", "PARAMETER_NAME", "FUNCTION_NAME2"))
    + "\nString and scalar parameters should be specified as is without any escaping or quotes, while lists and "
    'objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and '
    '"false" for '
    "other types (numbers, booleans, arrays, objects).\n\n"
    "If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking "
    "block. Here is an example:\n\n"
    "<｜DSML｜function_calls>\n...\n</｜DSML｜function_calls>\n\n"
    "<function_results>\n...\n</function_results>\n\n"
    "<think>...thinking about results</think>\n\n"
    "Here are the functions available in JSONSchema format:\n<functions>\n"
)

_V4 = (
    "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by writing "
    'a "<｜DSML｜tool_calls>" block like the following:\n\n'
    + _render_example("tool_calls", ("TOOL_NAME", "PARAMETER_NAME", "TOOL_NAME2"))
    + '\nString parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, '
    'arrays, objects), pass the value in JSON format and set `string="false"`.\n\n'
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n"
)
_V4_END = "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"


def _render_schemas(tools: Sequence[JsonObject]) -> str:
    functions: list[Any] = [tool.get("function") or tool for tool in tools]
    return "".join(f"{render_json(function)}\n" for function in functions)


def render_v32_tools(tools: Sequence[JsonObject]) -> str:
    """Render the tool declarations of V3.2."""
    return f"{_V32}{_render_schemas(tools)}</functions>\n"


def render_v4_tools(tools: Sequence[JsonObject]) -> str:
    """Render the tool declarations of V4."""
    return f"{_V4}{_render_schemas(tools)}{_V4_END}"
