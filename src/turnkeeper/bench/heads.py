"""The one header that the bench's own HTTP looks for, in requests of its mock and in replies of a server."""

import re

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def find_content_length(head: bytes | bytearray, end: int) -> int | None:
    """Find the length of the body in bytes; None where the head gives none.

    Args:
        head: the bytes received so far.
        end: the place of the empty line that ends the head.
    """
    found = _CONTENT_LENGTH.search(head, 0, end + 2)
    return int(found.group(1)) if found else None
