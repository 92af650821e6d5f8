"""Sessions in files: samples payloads as a collect returns them, one file a session."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from safetensors import SafetensorError, safe_open

from turnkeeper.client.payloads import SUFFIX
from turnkeeper.errors import PayloadError, RequestError, SessionNotFoundError
from turnkeeper.jsontypes import JsonObject, spell_value
from turnkeeper.samples.sample import OWN_KEY
from turnkeeper.samples.wire import META_KEY
from turnkeeper.views.session import ShownSession, ShownToken, ToldMessage, TurnContent, read_session

METADATA_PREFIX = "metadata."
_HINT = "a collect returns one: SessionHandle.samples_payload()"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Path:
    """What is read of one sample."""

    response: str
    turns: list[JsonObject]
    """The turns that the sample keeps, as its metadata has them."""
    versions: list[JsonObject]
    masked: list[JsonObject]
    ids: list[int]
    """Shape [R], as in the next two: the tokens behind the first prompt."""
    mask: list[int]
    logprobs: list[float]


class PayloadFolder:
    """A payload file, or all payloads of a folder and the folders in it.

    A payload does not hold the id of its session: a session is called by its file, without the ending.
    """

    has_turns_in_flight = False
    elsewhere = None

    def __init__(self, path: Path) -> None:
        """Find the files; none is read yet."""
        self._path = path
        self._files = _find_files(path)

    def iter_rows(self, filters: Mapping[str, str]) -> Iterator[JsonObject]:
        """Iterate over the payloads in the order of their names.

        A row lacks what only a server knows; that of a file which is no whole payload has an ``error``. Other files of
        safetensors, such as the weights in the folder of a run, have none.
        """
        for name in filters:
            if not name.startswith(METADATA_PREFIX):
                raise RequestError(
                    f"{name} is told by servers, and {self._path} holds files",
                    hint=f"files are chosen by {METADATA_PREFIX}KEY",
                    param=name,
                )
        wanted = {name.removeprefix(METADATA_PREFIX): value for name, value in filters.items()}
        if not self._files:
            raise PayloadError(f"there is no file *{SUFFIX} in {self._path}", hint=_HINT)
        for name, file in self._files.items():
            try:
                session = read_payload(file, name, with_content=False)
            except PayloadError as error:
                if self._path.is_file():
                    raise
                if _holds_something_else(file):
                    continue
                yield {"session_id": name, "turns": 0, "bytes": file.stat().st_size, "error": error.message}
                continue
            if all(key in session.metadata and spell_value(session.metadata[key]) == wanted[key] for key in wanted):
                yield {
                    "session_id": session.id,
                    "turns": len(session.turns),
                    "bytes": file.stat().st_size,
                    "history": session.history,
                    "metadata": session.metadata,
                }

    def read_session(self, session_id: str) -> ShownSession:
        """Read one session with the content of the turns that its samples hold."""
        file = self._files.get(session_id)
        if file is None:
            raise SessionNotFoundError(f"there is no payload {session_id!r} in {self._path}")
        return read_payload(file, session_id)


def read_payload(file: Path, name: str, *, with_content: bool = True) -> ShownSession:
    """Read the session of a payload file, without its routing rows, which are nearly all of its bytes.

    Args:
        file: the payload.
        name: what the session is called.
        with_content: whether texts and tokens are read as well.

    Raises:
        PayloadError: the file is no samples payload, or is not of this server.
    """
    try:
        opened: Any = safe_open(file, framework="numpy")
        with opened as tensors:
            meta = orjson.loads(tensors.get_tensor(META_KEY).tobytes())
            paths = _read_paths(meta["samples"], tensors) if with_content else []
            return read_session(name, meta["session_metadata"], _read_contents(paths))
    except PayloadError:
        raise
    except OSError as error:
        raise PayloadError(f"{file} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise PayloadError(f"{file} is no samples payload: {error}", hint=_HINT) from error


def _holds_something_else(file: Path) -> bool:
    """Tell whether a file is whole, and of other tensors than a payload's."""
    try:
        opened: Any = safe_open(file, framework="numpy")
        with opened as tensors:
            return META_KEY not in tensors.keys()  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError):
        return False


def _read_paths(samples: Iterable[JsonObject], tensors: Any) -> list[_Path]:
    paths: list[_Path] = []
    for index, sample in enumerate(samples):
        own, length, response = sample["metadata"][OWN_KEY], sample["response_length"], sample["response"]
        if not isinstance(response, str):
            raise TypeError(f"the response of sample {index} must be a string")
        ids = tensors.get_tensor(f"tokens.{index}")
        paths.append(
            _Path(
                response=response,
                turns=own["turns"],
                versions=own["versions"],
                masked=own["masked"],
                ids=ids[len(ids) - length :].tolist(),
                mask=tensors.get_tensor(f"loss_mask.{index}").tolist(),
                logprobs=tensors.get_tensor(f"rollout_log_probs.{index}").tolist(),
            )
        )
    return paths


def _find_files(path: Path) -> dict[str, Path]:
    """Find the files of a path by the names of their sessions; of a folder, those with the ending of payloads."""
    if path.is_file():
        return {path.stem: path}
    return {str(file.relative_to(path).with_suffix("")): file for file in sorted(path.rglob(f"*{SUFFIX}"))}


def _read_contents(paths: Iterable[_Path]) -> dict[int, TurnContent]:
    """Read what the samples of a session hold of its turns; a token may carry loss in several samples."""
    texts: dict[int, TurnContent] = {}
    tokens: defaultdict[int, dict[int, ShownToken]] = defaultdict(dict)
    for path in paths:
        told_from = 0
        length = len(path.ids)
        versions, reasons = _spread(path.versions, "version", length), _spread(path.masked, "reason", length)
        for turn in path.turns:
            first, last = turn["text"]
            text = path.response[told_from:first]
            told = (ToldMessage(role="", text=text),) if text else ()
            content = TurnContent(told=told, text=path.response[first:last], tokens=())
            known = texts.get(turn["id"])
            if known is None or len(known.text) < len(content.text):  # a sample may end inside the turn
                texts[turn["id"]] = content
            told_from = last
            for place in range(turn["start"], turn["end"]):
                token = ShownToken(
                    id=path.ids[place],
                    logprob=path.logprobs[place],
                    version=versions.get(place),
                    trained=path.mask[place],
                    masked=reasons.get(place, ""),
                )
                found = tokens[turn["id"]]
                before = found.get(place - turn["start"])
                found[place - turn["start"]] = token if before is None else _join(before, token)
    return {
        turn_id: TurnContent(told=content.told, text=content.text, tokens=tuple(tokens[turn_id].values()))
        for turn_id, content in texts.items()
    }


def _spread(spans: Iterable[JsonObject], name: str, length: int) -> dict[int, str]:
    """Spread what is said of spans over their places, of which there are so many."""
    return {
        place: str(span[name])
        for span in spans
        if span[name] is not None
        for place in range(span["start"], min(span["end"], length))
    }


def _join(before: ShownToken, token: ShownToken) -> ShownToken:
    """The token with the loss that it carries in either sample."""
    trained = (before.trained or 0) + (token.trained or 0)
    return replace(token, trained=trained, masked="" if trained else before.masked or token.masked)
