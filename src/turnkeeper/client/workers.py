"""Which worker of a server a session lives in. Pure.

The workers of one server are processes of their own, each under its own address. A client that opens a session draws
its id and lets the id choose the worker, so that whoever has the id and the addresses looks there first.
"""

from collections.abc import Sequence


def rank_urls(urls: Sequence[str], session_id: str) -> Sequence[str]:
    """Order the addresses of workers by the ranks that a session's id gives them, its own worker first.

    Whatever the order of the addresses, the ranks are the same, and one more address leaves those of the others as they
    were (rendezvous hashing).
    """
    if len(urls) == 1:
        return urls
    from hashlib import blake2b  # here, as the client's imports are those of its first call

    return sorted(urls, key=lambda url: blake2b(f"{session_id} {url}".encode(), digest_size=8).digest())
