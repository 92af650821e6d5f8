"""Sessions whose creator draws the id.

1. The session has that id; an id of another form is refused, and no session is made.
2. An equal request opens no second session while the first is as it was opened.
3. The id of a session that was used, was opened otherwise, or has ended is refused.
4. With keys, a repeated request gives a new key, and the one before opens nothing.
"""

from typing import Any

import pytest

from httpkit import Site, running_site
from servicekit import user

ID = "0123456789abcdef0123456789abcdef"


async def _open(site: Site, **body: Any) -> Any:
    reply = await site.call("POST", "/sessions", {"session_id": ID, **body}, x_api_key="admin")
    assert reply.status == 200, reply.body
    return reply.json()


async def _count(site: Site) -> int:
    return len((await site.call("GET", "/sessions", x_api_key="admin")).json()["sessions"])


async def test_a_session_has_the_id_that_its_creator_drew() -> None:
    async with running_site() as site:
        assert await _open(site) == {"session_id": ID}
        assert (await site.chat(f"/sessions/{ID}", [user("a")])).status == 200


@pytest.mark.parametrize("bad", ["", "x", ID.upper(), ID[:-1], ID + "0", 7, [ID]], ids=repr)
async def test_an_id_of_another_form_is_refused(bad: Any) -> None:
    async with running_site() as site:
        reply = await site.call("POST", "/sessions", {"session_id": bad})
        assert (reply.status, "32 lower-case" in reply.json()["error"]) == (400, True)
        assert await _count(site) == 0


async def test_a_repeated_request_opens_no_second_session() -> None:
    async with running_site(max_sessions=1) as site:
        body = {"metadata": {"task": 7}, "history": "tree"}
        assert await _open(site, **body) == await _open(site, **body) == {"session_id": ID}
        assert await _count(site) == 1


async def test_a_session_that_is_not_as_it_was_opened_is_not_given_again() -> None:
    async with running_site() as site:
        await _open(site)
        for case in ("opened otherwise", "used", "deleted"):
            if case == "used":
                assert (await site.chat(f"/sessions/{ID}", [user("a")])).status == 200
            if case == "deleted":
                assert (await site.call("DELETE", f"/sessions/{ID}")).status == 204
            body = {"session_id": ID, "history": "tree" if case == "opened otherwise" else None}
            reply = await site.call("POST", "/sessions", body)
            assert (reply.status, reply.headers["x-should-retry"]) == (400, "false"), case
            assert f"session_id {ID} is that of a session" in reply.json()["error"], case


async def test_the_last_key_is_the_one_that_counts() -> None:
    async with running_site(api_key="admin") as site:
        first, second = (await _open(site))["key"], (await _open(site))["key"]
        statuses = [
            (await site.call("GET", f"/sessions/{ID}/v1/models", authorization=f"Bearer {key}")).status
            for key in (first, second)
        ]
        assert statuses == [401, 200]
