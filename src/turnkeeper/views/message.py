"""A chat message as text for people. Pure."""

from turnkeeper.jsontypes import Message, encode_json, is_array, is_object


def describe_message(message: Message) -> str:
    """Describe what a message says: its reasoning, its text, its calls with their ids; images as what they are."""
    said: list[str] = []
    if message.get("tool_call_id"):
        said.append(f"(result of {message['tool_call_id']})")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        said.append(f"<think>{reasoning}</think>")
    if content := _describe_content(message.get("content")):
        said.append(content)
    calls = message.get("tool_calls")
    said += [_describe_call(call) for call in calls] if is_array(calls) else []
    return "\n".join(said)


def _describe_content(content: object) -> str:
    if is_array(content):
        return "\n".join(_describe_part(part) for part in content)
    return content if isinstance(content, str) else "" if content is None else encode_json(content).decode()


def _describe_part(part: object) -> str:
    if is_object(part) and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type", "part") if is_object(part) else "part"
    return f"({kind})"


def _describe_call(call: object) -> str:
    function = call.get("function") if is_object(call) else None
    if not is_object(call) or not is_object(function):
        return "(call)"
    arguments = function.get("arguments", "")
    spelled = arguments if isinstance(arguments, str) else encode_json(arguments).decode()
    return f"{function.get('name', '')}({spelled})  [{call.get('id', '')}]"
