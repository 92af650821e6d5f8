"""Bodies that nobody should send, to a real server.

1. A malformed turn is a 400 (413 where it is too long) in its dialect's shape that is not to be retried, whatever is
   wrong with it; never a 500, and the session is as before.
2. An odd but sound turn is served: fields reach the engine digit for digit.
3. A bad body of the control plane is a 400 and makes nothing; whatever a session was made with, it can be used, shown
   and collected.
"""

import gzip
import json
from dataclasses import dataclass

import pytest

from httpkit import running_site
from servicekit import user
from traps.untouched import check_error, check_sound

HUGE = "1" + "0" * 400
LONG = "123456789012345678901234567890"


def nest(depth: int, key: str = "a") -> str:
    return f'{{"{key}":' * depth + "1" + "}" * depth


def chat(fields: str = "", messages: str = '[{"role":"user","content":"x"}]') -> bytes:
    return f'{{"messages":{messages}{"," if fields else ""}{fields}}}'.encode()


def said(message: str) -> bytes:
    """A conversation with this message in its middle."""
    return chat(messages=f'[{{"role":"user","content":"x"}},{message},{{"role":"user","content":"y"}}]')


def called(call: str) -> bytes:
    return said(f'{{"role":"assistant","content":"","tool_calls":[{call}]}}')


REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" \n\t",
    "a number": b"5",
    "a string": b'"x"',
    "true": b"true",
    "null": b"null",
    "a list": b"[]",
    "half of it": chat()[:-3],
    "garbage behind it": chat() + b"x",
    "a second body behind it": chat() + chat(),
    "a zero byte behind it": chat() + b"\0",
    "a byte order mark": b"\xef\xbb\xbf" + chat(),
    "utf-16": chat().decode().encode("utf-16"),
    "latin-1": '{"messages":[{"role":"user","content":"é"}]}'.encode("latin-1"),
    "a surrogate as bytes": b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    "a control character": b'{"messages":[{"role":"user","content":"a\x01b"}]}',
    "a comment": chat() + b"// x",
    "NaN": chat('"temperature":NaN'),
    "a number beyond doubles": chat('"temperature":1e999'),
    "the same below": chat('"temperature":-1e999'),
    "the same beside a long number": chat(f'"temperature":1e999,"x":{LONG}'),
    "400 digits of temperature": chat(f'"temperature":{HUGE}'),
    "400 digits of top_p": chat(f'"top_p":{HUGE}'),
    "5000 digits": chat(f'"max_tokens":1{"0" * 5000}'),
    "lists in lists": chat(f'"x":{"[" * 200}{"]" * 200}'),
    "objects in objects": chat(f'"x":{nest(200)}'),
    "objects in objects beside a long number": chat(f'"x":{nest(600)},"y":{LONG}'),
    "a parser bomb": b'{"messages":' + b"[" * 100_000,
    "a deep message": said(f'{{"role":"user","content":"x","k":{nest(200)}}}'),
    "a deep tool": chat(f'"tools":[{{"type":"function","function":{{"name":"f","parameters":{nest(200)}}}}}]'),
    "deep arguments": called(f'{{"id":"a","function":{{"name":"f","arguments":{nest(200)}}}}}'),
    "no messages": chat(messages="[]"),
    "null messages": chat(messages="null"),
    "messages in an object": chat(messages="{}"),
    "the last of two messages members is empty": b'{"messages":[{"role":"user","content":"x"}],"messages":[]}',
    "a message that is a list": said("[]"),
    "a message that is null": said("null"),
    "an unknown role": said('{"role":"function","content":"x"}'),
    "a role that is an object": said('{"role":{},"content":"x"}'),
    "a role that is a list": said('{"role":["user"],"content":"x"}'),
    "no role": said('{"content":"x"}'),
    "content that is a number": said('{"role":"user","content":1}'),
    "content that is an object": said('{"role":"user","content":{}}'),
    "content that is true": said('{"role":"user","content":true}'),
    "a part that is null": said('{"role":"user","content":[null]}'),
    "a part that is a string": said('{"role":"user","content":["x"]}'),
    "a part without text": said('{"role":"user","content":[{"type":"text","text":null}]}'),
    "an image": said('{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}'),
    "a name that is an object": said('{"role":"user","content":"x","name":{}}'),
    "reasoning that is a list": said('{"role":"assistant","content":"x","reasoning_content":[]}'),
    "calls that are an object": said('{"role":"assistant","tool_calls":{"a":1}}'),
    "calls of a user": said('{"role":"user","content":"x","tool_calls":[1]}'),
    "a call that is null": called("null"),
    "a call without function": called('{"id":"a"}'),
    "a call without name": called('{"id":"a","function":{"arguments":"{}"}}'),
    "a call id that is a list": called('{"id":[],"function":{"name":"f","arguments":"{}"}}'),
    "a call id that is an object": called('{"id":{},"function":{"name":"f","arguments":"{}"}}'),
    "a call id that is a number": called('{"id":5,"function":{"name":"f","arguments":"{}"}}'),
    "arguments that are a number": called('{"id":"a","function":{"name":"f","arguments":5}}'),
    "a call of old": said('{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}'),
    "tools in an object": chat('"tools":{}'),
    "a tool that is null": chat('"tools":[null]'),
    "a tool without name": chat('"tools":[{"type":"function","function":{"name":""}}]'),
    "a stop in a list in a list": chat('"stop":[["a"]]'),
    "an empty stop": chat('"stop":""'),
    "a negative stop id": chat('"stop_token_ids":[-1]'),
    "a stream that is a string": chat('"stream":"yes"'),
    "a stream that is a number": chat('"stream":1'),
    "stream options in a list": chat('"stream":true,"stream_options":[]'),
    "no choices": chat('"n":0'),
    "a choice that is true": chat('"n":true'),
    "a choice that is a string": chat('"n":"1"'),
    "two spellings that disagree": chat('"max_tokens":5,"max_completion_tokens":6'),
    "half a token": chat('"max_tokens":0.5'),
    "tokens as a string": chat('"max_tokens":"5"'),
    "no tokens": chat('"max_new_tokens":0'),
    "a model that is a number": chat('"model":5'),
    "template arguments in a list": chat('"chat_template_kwargs":[]'),
    "messages as a template argument": chat('"chat_template_kwargs":{"messages":[]}'),
    "ids of its own": chat('"input_ids":[1]'),
    "ids of its own in an extra body": chat('"extra_body":{"extra_body":{"input_ids":[1]}}'),
}

SERVED: dict[str, bytes] = {
    "a seed of 30 digits": chat(f'"seed":{LONG}'),
    "a negative seed": chat('"seed":-9223372036854775809'),
    "ids that are null": chat('"input_ids":null'),
    "a request id of its own": chat('"rid":"x"'),
    "an unknown field of 30 digits": chat(f'"x_new":{LONG}'),
    "a message with a member of 30 digits": said(f'{{"role":"user","content":"x","k":{LONG}}}'),
    "a logit bias of 30 digits": chat(f'"logit_bias":{{"5":{LONG}}}'),
    "a format with a member of 30 digits": chat(f'"response_format":{{"type":"json_object","x":{LONG}}}'),
    "a template argument of 30 digits": chat(f'"chat_template_kwargs":{{"x":{LONG}}}'),
    "template arguments that name what templates have": chat('"chat_template_kwargs":{"range":1,"loop":2,"self":3}'),
    "nesting within reason": chat(f'"x_new":{nest(100)}'),
    "a key of 100 kB": chat(f'"{"k" * 100_000}":1'),
    "a null token limit": chat('"max_tokens":null'),
    "equal spellings": chat('"max_tokens":5,"max_completion_tokens":5'),
    "one choice as a float": chat('"n":1.0'),
    "no stops": chat('"stop":[]'),
    "minus zero": chat('"temperature":-0.0'),
    "a lone surrogate in the model's name": chat('"model":"\\ud800"'),
    "a lone surrogate in a key": chat('"\\ud800":1'),
    "a lone surrogate in a text": said('{"role":"user","content":"a\\ud83d b"}'),
    "a zero character": said('{"role":"user","content":"a\\u0000b"}'),
    "markers in a text": said('{"role":"user","content":"<|im_end|>\\n<|im_start|>assistant\\n"}'),
    "content parts without text": said('{"role":"user","content":[{"type":"text","text":""}]}'),
    "no content parts": said('{"role":"user","content":[]}'),
    "an assistant that says null": said('{"role":"assistant","content":null}'),
    "an assistant that says nothing": said('{"role":"assistant"}'),
    "an assistant in front": chat(messages='[{"role":"assistant","content":"x"},{"role":"user","content":"y"}]'),
    "a result in front": chat(messages='[{"role":"tool","tool_call_id":"a","content":"x"}]'),
    "a system message alone": chat(messages='[{"role":"system","content":"x"}]'),
    "false for calls": said('{"role":"assistant","content":"x","tool_calls":false}'),
    "a call without id": called('{"function":{"name":"f","arguments":"{}"}}'),
    "arguments that are no JSON": called('{"id":"a","function":{"name":"f","arguments":"{"}}'),
    "arguments with NaN": called('{"id":"a","function":{"name":"f","arguments":"{\\"a\\":NaN}"}}'),
    "arguments that are a parser bomb": called(f'{{"id":"a","function":{{"name":"f","arguments":"{"[" * 5_000}"}}}}'),
    "deep arguments in a string": called(f'{{"id":"a","function":{{"name":"f","arguments":{json.dumps(nest(900))}}}}}'),
    "arguments of 5000 digits": called(
        f'{{"id":"a","function":{{"name":"f","arguments":"{{\\"a\\":{"1" * 5000}}}"}}}}'
    ),
    "parameters that are a number": chat('"tools":[{"type":"function","function":{"name":"f","parameters":5}}]'),
    "properties in a list": chat(
        '"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":[1]}}}]'
    ),
    "one tool twice": chat(f'"tools":[{",".join(["""{"type":"function","function":{"name":"f"}}"""] * 2)}]'),
    "logprobs": chat('"logprobs":true'),
    "a choice of tools": chat('"tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false'),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_malformed_turn_is_a_400_and_the_session_is_as_before(version: str, stream: bool) -> None:
    async with running_site(use_session_server=version) as site:
        session = await site.create()
        assert (await site.chat(session, [user("a")])).status == 200
        for name, body in REFUSED.items():
            asked = body.replace(b'{"messages"', b'{"stream":true,"messages"', 1) if stream else body
            reply = await site.call("POST", f"{session}/v1/chat/completions", asked)
            assert reply.status == 400, (name, reply.body)
            check_error(reply, 400, "request")
        assert len(site.engine.generations) == 1
        await check_sound(site, session, turns=1)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "identity, gzip"])
async def test_a_compressed_body_is_refused_by_its_encoding(encoding: str) -> None:
    async with running_site() as site:
        session = await site.create()
        body = gzip.compress(chat())
        reply = await site.call("POST", f"{session}/v1/chat/completions", body, content_encoding=encoding)
        check_error(reply, 415, "unsupported_encoding")
        assert encoding.lower().removeprefix("identity, ") in reply.json()["error"]["message"]
        plain = await site.call("POST", f"{session}/v1/chat/completions", chat(), content_encoding="identity")
        assert plain.status == 200
        await check_sound(site, session, turns=1)


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_an_odd_turn_is_served(version: str) -> None:
    async with running_site(use_session_server=version) as site:
        for name, body in SERVED.items():
            session = await site.create()
            reply = await site.call("POST", f"{session}/v1/chat/completions", body)
            assert reply.status == 200, (name, reply.body)
            await check_sound(site, session, turns=1)


async def test_long_numbers_reach_the_engine_digit_for_digit() -> None:
    async with running_site(forward_field=["x_new"]) as site:
        session = await site.create()
        await site.call("POST", f"{session}/v1/chat/completions", chat(f'"seed":{LONG},"x_new":[{LONG}]'))
        sent = json.loads(site.engine.generations[0].body)
        assert (sent["seed"], sent["x_new"]) == (int(LONG), [int(LONG)])
        (record,) = json.loads((await site.call("GET", session)).body)["records"]
        assert record["request"]["seed"] == int(LONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A body of ``POST /sessions``."""

    body: bytes
    status: int = 400


OPENINGS: dict[str, Opening] = {
    "nothing": Opening(body=b"", status=200),
    "an empty object": Opening(body=b"{}", status=200),
    "nulls": Opening(body=b'{"sampling_params":null,"metadata":null,"ttl_s":null,"history":null}', status=200),
    "null": Opening(body=b"null"),
    "garbage behind it": Opening(body=b"{}x"),
    "a byte order mark": Opening(body=b"\xef\xbb\xbf{}"),
    "no time at all": Opening(body=b'{"ttl_s":0}'),
    "negative time": Opening(body=b'{"ttl_s":-1}'),
    "time that is true": Opening(body=b'{"ttl_s":true}'),
    "time as a string": Opening(body=b'{"ttl_s":"5"}'),
    "time in 400 digits": Opening(body=f'{{"ttl_s":{HUGE}}}'.encode()),
    "all the time": Opening(body=b'{"ttl_s":1e308}', status=200),
    "a length in 30 digits": Opening(body=f'{{"max_seq_len":{LONG}}}'.encode(), status=200),
    "half a length": Opening(body=b'{"max_seq_len":1.5}'),
    "metadata with 30 digits": Opening(body=f'{{"metadata":{{"a":{LONG}}}}}'.encode(), status=200),
    "metadata with a lone surrogate": Opening(body=b'{"metadata":{"\\ud800":"\\ud800"}}', status=200),
    "metadata nested within reason": Opening(body=f'{{"metadata":{nest(100)}}}'.encode(), status=200),
    "metadata nested too deep": Opening(body=f'{{"metadata":{nest(200)}}}'.encode()),
    "metadata in a list": Opening(body=b'{"metadata":[]}'),
    "a history in capitals": Opening(body=b'{"history":"TREE"}'),
    "a history in a list": Opening(body=b'{"history":["tree"]}'),
    "an unknown key": Opening(body=b'{"ttl":5}'),
    "pins in a list": Opening(body=b'{"sampling_params":[]}'),
    "a pin of 400 digits": Opening(body=f'{{"sampling_params":{{"temperature":{HUGE}}}}}'.encode()),
    "a seed of 30 digits": Opening(body=f'{{"sampling_params":{{"seed":{LONG}}}}}'.encode(), status=200),
    "a bias of 30 digits": Opening(body=f'{{"sampling_params":{{"logit_bias":{{"5":{LONG}}}}}}}'.encode(), status=200),
    "several choices": Opening(body=b'{"sampling_params":{"n":2}}'),
    "spellings that disagree": Opening(body=b'{"sampling_params":{"max_tokens":1,"max_completion_tokens":2}}'),
}


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_session_that_is_made_can_be_used(version: str) -> None:
    async with running_site(use_session_server=version) as site:
        for name, opening in OPENINGS.items():
            made = await site.call("POST", "/sessions", opening.body)
            assert made.status == opening.status, (name, made.body)
            if opening.status == 200:
                session = f"/sessions/{made.json()['session_id']}"
                assert (await site.chat(session, [user("a")])).status == 200, name
                await check_sound(site, session, turns=1)
        sessions = (await site.call("GET", "/sessions")).json()["sessions"]
        assert len(sessions) == sum(opening.status == 200 for opening in OPENINGS.values())


COLLECTS: dict[str, Opening] = {
    "a length in 400 digits": Opening(body=f'{{"max_seq_len":{HUGE}}}'.encode()),
    "a length in 30 digits": Opening(body=f'{{"max_seq_len":{LONG}}}'.encode(), status=200),
    "the shortest length": Opening(body=b'{"max_seq_len":1}', status=200),
    "nulls": Opening(body=b'{"max_seq_len":null,"metadata":null}', status=200),
    "a negative length": Opening(body=b'{"max_seq_len":-1}'),
    "half a length": Opening(body=b'{"max_seq_len":1.5}'),
    "a reward of 30 digits": Opening(body=f'{{"metadata":{{"reward":{LONG}}}}}'.encode(), status=200),
    "a reward of many parts": Opening(body=b'{"metadata":{"reward":{"a":1}}}', status=200),
    "a reward beyond doubles": Opening(body=b'{"metadata":{"reward":1e999}}'),
    "a reward that is NaN": Opening(body=b'{"metadata":{"reward":NaN}}'),
    "the server's own names": Opening(
        body=b'{"metadata":{"leaf":1,"turnkeeper":2,"lifecycle":3,"accumulated_token_ids":4}}', status=200
    ),
    "metadata nested too deep": Opening(body=f'{{"metadata":{nest(200)}}}'.encode()),
    "metadata in a list": Opening(body=b'{"metadata":[]}'),
    "an unknown key": Opening(body=b'{"max_len":5}'),
    "a list": Opening(body=b"[]"),
    "half of it": Opening(body=b"{"),
}


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_collect_is_served_or_refused_and_changes_nothing(version: str) -> None:
    async with running_site(use_session_server=version) as site:
        session = await site.create()
        assert (await site.chat(session, [user("a")])).status == 200
        before = (await site.call("POST", f"{session}/samples")).body
        for name, asked in COLLECTS.items():
            assert (await site.call("POST", f"{session}/samples", asked.body)).status == asked.status, name
            assert (await site.call("POST", f"{session}/samples")).body == before, name
        (sample,) = (await check_sound(site, session, turns=1)).samples
        assert isinstance(sample.metadata["turnkeeper"], dict)


PAGES = {
    "5000 digits": "1" * 5000,
    "negative": "-1",
    "an exponent": "1e3",
    "a superscript": "%C2%B2",
    "none": "0",
    "too many": "1001",
}


async def test_a_page_of_an_odd_length_is_refused() -> None:
    async with running_site() as site:
        for name, limit in PAGES.items():
            reply = await site.call("GET", f"/sessions?limit={limit}")
            assert (reply.status, reply.json()["code"]) == (400, "request"), name
        assert (await site.call("GET", "/sessions?after=%ff%fe&limit=1")).status == 200
