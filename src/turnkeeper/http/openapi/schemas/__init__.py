"""The JSON Schemas of the OpenAPI document, by name: bodies, replies and errors.

What is declared elsewhere is taken from there: the body that opens a session, the fields of a turn's request, the
modes of a pause, the codes of errors. The rest is written here, and tests compare it with what the server says.
"""

from collections.abc import Mapping

from turnkeeper.http.openapi.schemas.errors import ERROR_SCHEMAS, list_error_codes
from turnkeeper.http.openapi.schemas.server import SERVER_SCHEMAS
from turnkeeper.http.openapi.schemas.sessions import SESSION_SCHEMAS
from turnkeeper.http.openapi.schemas.turns import TURN_SCHEMAS
from turnkeeper.jsontypes import JsonObject

SCHEMAS: Mapping[str, JsonObject] = {**SESSION_SCHEMAS, **SERVER_SCHEMAS, **TURN_SCHEMAS, **ERROR_SCHEMAS}

__all__ = ["SCHEMAS", "list_error_codes"]
