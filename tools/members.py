"""Enumerations as their source declares them, for reference pages."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from enum import StrEnum


def read_members(kind: type[StrEnum]) -> Iterator[tuple[str, str]]:
    """Read the members of a choice with the line beneath each."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for member, text in zip(body.body, body.body[1:], strict=False):
        match member, text:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(line))):
                yield str(kind[name]), line
            case _:
                continue
