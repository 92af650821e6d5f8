"""The OpenAPI document of the routes, and the page that shows it."""

from turnkeeper.http.openapi.document import Operation, describe_routes
from turnkeeper.http.openapi.pages import ApiPages
from turnkeeper.http.openapi.schemas import SCHEMAS

__all__ = ["SCHEMAS", "ApiPages", "Operation", "describe_routes"]
