"""Tokenizers with more added tokens, in place of tokenizers that cannot be downloaded."""

import json


def add_markers(tokenizer_json: bytes, markers: dict[str, bool]) -> bytes:
    """Return a ``tokenizer.json`` with more added tokens at the end of its vocabulary.

    Args:
        tokenizer_json: the tokenizer to start from.
        markers: the text of each new token, and True where it is special; texts that are tokens already are left alone.
    """
    document = json.loads(tokenizer_json)
    known = {token["content"] for token in document["added_tokens"]}
    taken = [*document["model"]["vocab"].values(), *(token["id"] for token in document["added_tokens"])]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    fresh = [marker for marker in markers if marker not in known]
    for number, marker in enumerate(fresh, start=max(taken) + 1):
        document["added_tokens"].append({"id": number, "content": marker, "special": markers[marker], **flags})
    return json.dumps(document).encode()
