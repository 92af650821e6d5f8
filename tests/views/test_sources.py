"""Where sessions are read from.

1. A target is known by what it is: a URL, HOST:PORT, a file, a folder; anything else is refused with what is expected.
2. A payload is shown as its session was, with the tokens that its samples hold; a folder lists its payloads.
3. A file that is no payload, or holds metadata of another form, is a typed error, whatever is in it.
4. A server is read page by page, and its errors are its own; something that is no session server is said to be none.
5. Where a server has several processes, the one that answered says so, and where the others are.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from httpkit import running_site
from samples.builders import TREE, Story
from turnkeeper.core import Turn
from turnkeeper.errors import (
    AuthenticationError,
    ConfigError,
    PayloadError,
    PermissionDeniedError,
    RequestError,
    ServerReplyError,
    ServerUnreachableError,
    SessionNotFoundError,
    TurnkeeperError,
)
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import OWN_KEY, describe_turn, view_session
from turnkeeper.samples.wire import META_KEY
from turnkeeper.testing import unreachable_url
from turnkeeper.views import ShownSession, explain_session, open_source
from turnkeeper.views.payload import PayloadFolder, read_payload
from turnkeeper.views.render import render_explanation, render_rows, render_session, render_turn
from turnkeeper.views.server import PAGE_SIZE, Elsewhere, ServerSource, find_elsewhere
from turnkeeper.views.session import ToldMessage
from turnkeeper.views.source import OpenOptions

TARGETS: dict[str, tuple[type, str]] = {
    "http://host:1": (ServerSource, ""),
    "https://host/prefix/": (ServerSource, ""),
    "host:30100": (ServerSource, ""),
    "[::1]:30100": (ServerSource, ""),
    "{folder}": (PayloadFolder, ""),
    "{folder}/a.safetensors": (PayloadFolder, ""),
}


@pytest.mark.parametrize(("target", "kind"), [(target, kind) for target, (kind, _) in TARGETS.items()], ids=TARGETS)
def test_a_target_is_known_by_what_it_is(target: str, kind: type, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"")
    assert isinstance(open_source(target.format(folder=tmp_path)), kind)


@pytest.mark.parametrize("target", ["", "nowhere", "ftp://host", "host:port", "/no/such/file"])
def test_any_other_target_is_refused(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if target:
        with pytest.raises(ConfigError, match="neither the URL of a server nor a file or folder"):
            open_source(target)
    else:
        assert isinstance(open_source(target), PayloadFolder)  # the folder one is in


# 2: payloads.


def tell() -> tuple[Story, Turn]:
    story = Story(TREE)
    first = story.say([1, 2, 3], [11, 12])
    story.say([4], [13, 14, 15], after=first)
    return story, story.say([5, 6], [16], after=first, headers={"x-claude-code-agent-id": "sub"})


def build_payload(story: Story, **fields: Any) -> bytes:
    view = view_session(story.session)
    own = {
        "history": "tree",
        "metadata": {"task": 7, "name": "a"},
        "turns": [describe_turn(view, turn.id) for turn in view.turns],
    }
    story_metadata = {**story.metadata(), OWN_KEY: own}
    story.metadata = lambda: story_metadata
    return story.collect(**fields).encode().to_bytes()


def write_payload(path: Path, **fields: Any) -> Path:
    story, _ = tell()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(build_payload(story, **fields))
    return path


def test_a_payload_is_shown_as_its_session_was(tmp_path: Path) -> None:
    session = PayloadFolder(write_payload(tmp_path / "a.safetensors")).read_session("a")
    assert (session.id, session.history, session.metadata) == ("a", "tree", {"task": 7, "name": "a"})
    assert [(turn.parent, turn.prompt_tokens, turn.completion_tokens) for turn in session.turns] == [
        (None, 3, 2),
        (0, 6, 3),
        (0, 7, 1),
    ]
    assert [turn.trainable for turn in session.turns] == [2, 3, 1]
    contents = [turn.content for turn in session.turns]
    assert [content and content.text for content in contents] == ["<11 12>", "<13 14 15>", "<16>"]
    assert [content and content.told for content in contents] == [
        (),
        (ToldMessage(role="", text="<4>"),),
        (ToldMessage(role="", text="<5 6>"),),
    ]
    first = contents[0]
    assert first is not None
    assert [(token.id, token.logprob, token.version) for token in first.tokens] == [(11, -1.1, "v1"), (12, -1.2, "v1")]
    assert [(token.trained, token.masked) for token in first.tokens] == [(1, ""), (1, "")]


def test_masked_tokens_say_why_and_turns_of_no_sample_have_no_content(tmp_path: Path) -> None:
    story = Story(TREE)
    first = story.say([1], [11, 12], model="policy")
    second = story.say([2], [13], after=first, model="small")
    story.say([3], [14], after=second, model="policy")
    story.say([4], [15], after=first, text="left", delivered=False)
    path = tmp_path / "a"
    path.write_bytes(build_payload(story, train_models=("policy",)))
    session = read_payload(path, "a")
    masked = session.turns[1].content
    assert masked is not None
    assert [(token.trained, token.masked) for token in masked.tokens] == [(0, "hook")]
    assert session.turns[3].content is None
    assert "in no sample" in "\n".join(render_turn(session.turns[3], limit=None, with_tokens=True))


def test_a_sample_that_is_cut_holds_what_it_keeps(tmp_path: Path) -> None:
    session = read_payload(write_payload(tmp_path / "a", max_seq_len=8), "a")
    content = session.turns[1].content
    assert content is not None
    assert (content.text, [token.id for token in content.tokens]) == ("<13 14>", [13, 14])


def test_a_folder_lists_its_payloads(tmp_path: Path) -> None:
    write_payload(tmp_path / "b" / "two.safetensors")
    write_payload(tmp_path / "one.safetensors")
    write_payload(tmp_path / "one.bin")
    (tmp_path / "notes.txt").write_text("no payload")
    source = PayloadFolder(tmp_path)
    rows = list(source.iter_rows({}))
    assert [row["session_id"] for row in rows] == ["b/two", "one"]
    assert rows[0] == {
        "session_id": "b/two",
        "turns": 3,
        "bytes": (tmp_path / "b" / "two.safetensors").stat().st_size,
        "history": "tree",
        "metadata": {"task": 7, "name": "a"},
    }
    assert list(source.iter_rows({"metadata.task": "7"})) == rows
    assert list(source.iter_rows({"metadata.task": "8"})) == []
    assert source.read_session("b/two").id == "b/two"
    with pytest.raises(SessionNotFoundError, match="there is no payload 'c'"):
        source.read_session("c")
    with pytest.raises(RequestError, match="phase is told by servers"):
        next(source.iter_rows({"phase": "gate"}))


def test_a_folder_without_payloads_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(PayloadError, match=r"there is no file \*\.safetensors in"):
        list(PayloadFolder(tmp_path).iter_rows({}))


def test_weights_in_a_folder_of_payloads_are_not_listed(tmp_path: Path) -> None:
    write_payload(tmp_path / "samples" / "one.safetensors")
    safetensors.numpy.save_file({"weight": np.zeros(2)}, tmp_path / "weights.safetensors")
    assert [row["session_id"] for row in PayloadFolder(tmp_path).iter_rows({})] == ["samples/one"]
    with pytest.raises(PayloadError, match="no samples payload"):
        list(PayloadFolder(tmp_path / "weights.safetensors").iter_rows({}))


def test_a_file_that_was_cut_off_is_listed_as_unreadable(tmp_path: Path) -> None:
    whole = write_payload(tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(whole[:-10])
    good, bad = PayloadFolder(tmp_path).iter_rows({})
    assert "error" not in good
    assert (bad["session_id"], bad["turns"], bad["bytes"]) == ("b", 0, len(whole) - 10)
    assert "b.safetensors is no samples payload" in bad["error"]
    assert render_rows([good, bad])[2].split()[:2] == ["b", "0"]
    assert "unreadable: " in render_rows([good, bad])[2]


BAD_FILES = {"empty": b"", "text": b"no payload", "other tensors": safetensors.numpy.save({})}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_no_payload_is_a_typed_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(PayloadError, match=r"a\.safetensors is no samples payload"):
        list(PayloadFolder(path).iter_rows({}))


def test_a_payload_of_another_server_is_a_typed_error(tmp_path: Path) -> None:
    story, _ = tell()
    (tmp_path / "a").write_bytes(story.collect().encode().to_bytes())
    with pytest.raises(PayloadError, match="session a says nothing of its turns"):
        read_payload(tmp_path / "a", "a")


def list_places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in a JSON value."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(each for key, member in members for each in list_places(member, (*place, key)))]


STORY_PAYLOAD = build_payload(tell()[0])
STORY_META: JsonObject = orjson.loads(safetensors.numpy.load(STORY_PAYLOAD)[META_KEY].tobytes())
PLACES = list_places(STORY_META)[1:]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from([None, True, -1, 10**15, 1.5, "x", [], {}, [None], {"a": {}}]))
def test_metadata_of_another_form_is_a_typed_error_or_shown(tmp_path_factory: Any, place: Any, value: Any) -> None:
    meta = orjson.loads(orjson.dumps(STORY_META))
    holder = meta
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    tensors = safetensors.numpy.load(STORY_PAYLOAD)
    tensors[META_KEY] = np.frombuffer(orjson.dumps(meta), dtype="u1")
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(safetensors.numpy.save(tensors))
    try:
        session = read_payload(path, "a")
    except PayloadError:
        return
    render_all(session)


def render_all(session: ShownSession) -> list[str]:
    lines = render_session(session) + render_explanation(explain_session(session))
    return lines + [line for turn in session.turns for line in render_turn(turn, limit=10, with_tokens=True)]


# 4: servers.


async def read(source: Any, method: str, *arguments: Any) -> Any:
    """Call a source, which runs a loop of its own, beside the loop of the server."""
    return await asyncio.to_thread(lambda: getattr(source, method)(*arguments))


async def list_rows(source: ServerSource, **filters: str) -> list[JsonObject]:
    return await asyncio.to_thread(lambda: list(source.iter_rows(filters)))


async def test_a_server_is_read_page_by_page() -> None:
    async with running_site(use_session_server="v2") as site:
        made = sorted([(await site.create()).removeprefix("/sessions/") for _ in range(PAGE_SIZE + 3)])
        source = ServerSource(site.url)
        assert [row["session_id"] for row in await list_rows(source)] == made
        assert await list_rows(source, in_flight="1") == []
        question = [{"role": "user", "content": "hi"}]
        reply = (await site.chat(f"/sessions/{made[0]}", question)).json()
        session: ShownSession = await read(source, "read_session", made[0])
        (turn,) = session.turns
        assert turn.response_id == reply["id"]
        assert turn.engine == site.engine_url
        assert turn.content is not None
        assert turn.content.told == (ToldMessage(role="user", text="hi"),)
        assert turn.content.text == reply["choices"][0]["message"]["content"]
        assert len(turn.content.tokens) == turn.completion_tokens == reply["usage"]["completion_tokens"]
        assert render_all(session)


PORTS = [30100, 30101, None]
ELSEWHERE: dict[str, tuple[str, list[int | None], int, list[str] | None]] = {
    "one process": ("http://host:30100", [30100], 0, None),
    "one of several": ("http://host:30101", PORTS, 1, ["http://host:30100"]),
    "over IPv6 and behind a path": ("https://[::1]:30100/at", PORTS, 0, ["https://[::1]:30101/at"]),
    "on a free port": ("http://host:41234", PORTS, 2, []),
    "behind a proxy": ("http://host:80", PORTS, 0, []),
    "without a port": ("http://host", PORTS, 2, []),
}


@pytest.mark.parametrize(("url", "ports", "number", "urls"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_where_other_sessions_are_is_told(
    url: str, ports: list[int | None], number: int, urls: list[str] | None
) -> None:
    found = find_elsewhere(url, {"number": number, "count": len(ports), "ports": ports})
    assert (None if found is None else found.urls) == (None if urls is None else tuple(urls))
    if found is not None:
        assert (found.worker, found.workers) == (number, 3)
        assert str(found).startswith(f"worker {number} of 3 answered, ")
        assert str(found).endswith(", ".join(found.urls) or "prints at its start")


async def test_a_process_of_several_says_so_with_its_rows() -> None:
    async with running_site(session_server_workers=2) as site:
        source = ServerSource(site.url)
        assert source.elsewhere is None
        assert await list_rows(source) == []
        assert source.elsewhere == Elsewhere(worker=0, workers=2, urls=())
        with pytest.raises(SessionNotFoundError) as raised:
            await read(ServerSource(site.url), "read_session", "0" * 32)
        assert raised.value.hint == str(source.elsewhere)


async def test_the_errors_of_a_server_are_its_own() -> None:
    async with running_site(api_key="admin-key") as site:
        created = (await site.call("POST", "/sessions", {}, authorization="Bearer admin-key")).json()
        cases: list[tuple[str | None, str, type[TurnkeeperError]]] = [
            (None, created["session_id"], AuthenticationError),
            ("wrong", created["session_id"], AuthenticationError),
            (created["key"], created["session_id"], PermissionDeniedError),
            ("admin-key", "0" * 32, SessionNotFoundError),
            ("admin-key", "../health", SessionNotFoundError),
        ]
        for key, session_id, error in cases:
            with pytest.raises(error):
                await read(open_source(site.url, OpenOptions(api_key=key)), "read_session", session_id)
        with pytest.raises(RequestError, match="phse is no parameter"):
            await list_rows(ServerSource(site.url, api_key="admin-key"), phse="gate")


async def test_a_key_with_the_scope_reads_its_session() -> None:
    async with running_site(api_key="admin-key") as site:
        body = {"scopes": ["read"]}
        created = (await site.call("POST", "/sessions", body, authorization="Bearer admin-key")).json()
        source = open_source(site.url, OpenOptions(api_key=created["key"]))
        session: ShownSession = await read(source, "read_session", created["session_id"])
        assert session.turns == ()


async def test_what_is_no_session_server_is_said_to_be_none() -> None:
    async with running_site() as site:
        source = ServerSource(site.engine_url)
        with pytest.raises(ServerReplyError, match="an error of a session server is expected"):
            await list_rows(source)
    with unreachable_url() as url, pytest.raises(ServerUnreachableError, match="no answer from"):
        await list_rows(ServerSource(url))
