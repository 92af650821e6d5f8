"""The JSON of a session's last prompt, so that a call writes only what its prompt adds to the one before.

::

    call 1   "input_ids":[1,2,3]        "messages":[{..},{..}]
    call 2   "input_ids":[1,2,3,4,5]    "messages":[{..},{..},{..},{..}]
                          |---|             |-------|            held, the rest is written

A turn repeats the prompt of the turn before it, and writing 32,000 ids again takes longer than any other step of its
request. What is held is compared with what is asked for, ids by their values and messages by identity, and is used
where all of it is repeated. So it is never wrong: behind a trim, on a branch or in a resumed turn everything that
differs is written anew.
"""

from collections.abc import Sequence
from operator import is_

import orjson

from turnkeeper.core.tokens import NO_TOKENS, TokenIds
from turnkeeper.jsontypes import Message, encode_json


class PromptText:
    """The ids and the messages of one prompt, with their JSON."""

    __slots__ = ("_id_pieces", "_ids", "_message_pieces", "_messages", "size_bytes")

    def __init__(self) -> None:
        """Hold nothing."""
        self._ids: TokenIds = NO_TOKENS
        self._id_pieces: list[bytes] = []
        self._messages: Sequence[Message] = ()
        self._message_pieces: list[bytes] = []
        self.size_bytes = 0
        """The memory that ids and texts take; the messages themselves belong to the turns."""

    def write_ids(self, ids: TokenIds) -> Sequence[bytes]:
        """Write ids as the members of a JSON array, in pieces to be joined, and hold them."""
        held = len(self._ids)
        if len(ids) < held or not (ids[:held] == self._ids).all():
            self._drop(self._id_pieces)
            held = 0
        if held < len(ids):
            added = orjson.dumps(ids[held:], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
            self._add(self._id_pieces, added)
        self.size_bytes += ids.nbytes - self._ids.nbytes
        self._ids = ids
        return self._id_pieces

    def write_messages(self, messages: Sequence[Message]) -> Sequence[bytes]:
        """Write messages as the members of a JSON array, in pieces to be joined, and hold them."""
        held = len(self._messages)
        if len(messages) < held or not all(map(is_, messages, self._messages)):
            self._drop(self._message_pieces)
            held = 0
        for message in messages[held:]:
            self._add(self._message_pieces, encode_json(message))
        self._messages = messages
        return self._message_pieces

    def _add(self, pieces: list[bytes], text: bytes) -> None:
        pieces.append(b"," + text if pieces else text)
        self.size_bytes += len(pieces[-1])

    def _drop(self, pieces: list[bytes]) -> None:
        self.size_bytes -= sum(map(len, pieces))
        pieces.clear()
