"""A server of the Model Context Protocol over stdin and stdout, with one tool that gives a weight and one a picture."""

import json
import sys

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
THING = {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]}
TOOLS = [
    {"name": "weigh", "description": "Weigh a thing in grams.", "inputSchema": THING},
    {"name": "picture", "description": "Take a picture of a thing.", "inputSchema": THING},
]


def answer(method: str, params: dict) -> dict | None:
    """The result of a request; None for a method that there is not."""
    if method == "initialize":
        told = {"name": "scale", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": told}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call" and params["name"] == "weigh":
        return {"content": [{"type": "text", "text": f"{params['arguments']['thing']}: 417 g"}]}
    if method == "tools/call":
        return {"content": [{"type": "image", "data": PICTURE, "mimeType": "image/png"}]}
    return {} if method == "ping" else None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params", {}))
        said = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}) + "\n")
        sys.stdout.flush()
