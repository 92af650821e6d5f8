"""Samples as one safetensors payload, and back.

::

    8 bytes    length of the header, little-endian
    header     JSON: for each tensor its dtype, shape and place
    data       tensors, widest dtype first: tokens.0 rollout_log_probs.0 ... loss_mask.0 _samples_meta

Tensor ``FIELD.i`` belongs to sample i. ``_samples_meta`` is UTF-8 JSON: ``{"samples": [...], "session_metadata":
{...}, "empty_reason": null | "no_records" | "all_truncated"}``; a sample's entry holds its other fields and
``nulls``, the names of its tensor fields that are null. A linear session sends the metadata of the collect request as
a fourth key, ``agent``, which the reference trainer's reader ignores; under tree hooks have put it where it belongs.

Side channels declare tensors of their own (`turnkeeper.channels`). Writing joins nothing: routing rows, which are
nearly all of the bytes, widen to int32 block by block on the way out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Any, cast

import numpy as np
import orjson
import safetensors
import safetensors.numpy
import xxhash
from numpy.typing import NDArray

from turnkeeper.channels import CHANNELS
from turnkeeper.choices import HistoryKind
from turnkeeper.errors import AssemblyError, PayloadError
from turnkeeper.jsontypes import JsonObject, encode_json
from turnkeeper.samples.sample import OWNED_KEYS, PrefixCacheInfo, Sample, SampleStatus, SpecInfo

META_KEY = "_samples_meta"
_BLOCK_BYTES = 1 << 20
"""The number of bytes that are widened at a time, which takes 0.1 ms, for which other turns wait."""
_CODES = {"<i8": "I64", "<f8": "F64", "<i4": "I32", "|u1": "U8"}


class EmptyReason(StrEnum):
    """The reasons why a session gave no sample."""

    NO_RECORDS = "no_records"
    """The session has no committed turn."""
    ALL_TRUNCATED = "all_truncated"
    """The length limit leaves nothing of any path, or the picker picked none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireField:
    """One row of the wire contract."""

    name: str
    """The attribute of a sample."""
    dtype: np.dtype[Any] | None
    """The dtype of the tensor, on both sides; None for a field in the JSON."""
    shape: str
    """For readers: T tokens, R of them behind the first prompt."""
    null: str
    """The meaning of null; "" where the field is never null."""
    meaning: str
    is_left_out_when_null: bool = False
    """True when the field is left out where it is null: a tensor by every session, another field by a linear one, as
    the trainer radixark/miles does."""
    is_of_channel: bool = False
    """True for a tensor of a side channel, which stands in a sample's ``tensors``."""


_PARALLEL: tuple[WireField, ...] = (
    WireField(
        name="tokens", dtype=np.dtype("<i8"), shape="[T]", null="", meaning="First prompt, completions and prompts."
    ),
    WireField(
        name="response", dtype=None, shape="string", null="", meaning="The last R tokens, decoded piece by piece."
    ),
    WireField(
        name="response_length", dtype=None, shape="integer", null="", meaning="R = T - length of the first prompt."
    ),
    WireField(name="loss_mask", dtype=np.dtype("|u1"), shape="[R]", null="", meaning="1 on sampled tokens that train."),
    WireField(
        name="rollout_log_probs",
        dtype=np.dtype("<f8"),
        shape="[R]",
        null="",
        meaning="Log probability at sampling; 0.0 on tokens not sampled.",
    ),
)
"""The fields that every sample has in front of the tensors of side channels."""

_DESCRIBING: tuple[WireField, ...] = (
    WireField(
        name="status",
        dtype=None,
        shape="pending|completed|truncated|aborted|failed",
        null="",
        meaning="How the path ended.",
    ),
    WireField(
        name="weight_versions",
        dtype=None,
        shape="list of strings",
        null="",
        meaning="The engine's version at the end of each turn that has one, in order.",
    ),
    WireField(
        name="prefix_cache_info",
        dtype=None,
        shape="{cached_tokens, total_prompt_tokens}",
        null="",
        meaning="Prefix cache use, summed over the turns.",
    ),
    WireField(
        name="spec_info",
        dtype=None,
        shape="{spec_accept_token_num, spec_draft_token_num, spec_verify_ct, completion_token_num}",
        null="",
        meaning="Speculative decoding counters, summed; zeros without.",
    ),
    WireField(
        name="metadata",
        dtype=None,
        shape="object",
        null="",
        meaning="lifecycle, messages, leaf, ...; everything of turnkeeper's own under `turnkeeper`.",
    ),
    WireField(
        name="reward",
        dtype=None,
        shape="number or object",
        null="keep the trainer's own; left out under v1",
        meaning="The reward given with the collect, or set by a hook.",
        is_left_out_when_null=True,
    ),
)
"""The fields behind them."""


def list_fields() -> tuple[WireField, ...]:
    """List the fields on the wire, in their order. Encoding, decoding and the reference page follow this list."""
    channels = (
        WireField(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            null=tensor.null,
            meaning=tensor.meaning,
            is_left_out_when_null=tensor.is_left_out_when_null,
            is_of_channel=True,
        )
        for tensor in CHANNELS.tensors
    )
    return (*_PARALLEL, *channels, *_DESCRIBING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleBatch:
    """A decoded reply."""

    samples: tuple[Sample, ...]
    session_metadata: JsonObject
    empty_reason: EmptyReason | None
    """The reason why there is no sample; None when there is one."""
    receipt: str
    """The digest of the payload, by which a trainer acknowledges that it has these samples."""

    def __repr__(self) -> str:
        """Return the samples in a line."""
        return f"<SampleBatch of {len(self.samples)}: {self.empty_reason or list(self.samples)}>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tensor:
    """Something that will be written: its values now, its dtype on the wire."""

    name: str
    values: NDArray[Any]
    dtype: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        return prod(self.values.shape) * self.dtype.itemsize

    def iter_chunks(self) -> Iterator[memoryview]:
        """Yield the values in wire form; without a copy where they have it already."""
        flat = np.ascontiguousarray(self.values).reshape(-1)
        step = len(flat) or 1
        if flat.dtype != self.dtype:
            step = max(1, _BLOCK_BYTES // self.dtype.itemsize)
        for start in range(0, len(flat), step):
            yield flat[start : start + step].astype(self.dtype, copy=False).data.cast("B")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplesPayload:
    """A reply that is ready to be written, in chunks or whole."""

    header: bytes
    tensors: tuple[_Tensor, ...]
    receipt: str | None = None
    """The digest of the bytes under which the server knows the payload; None where it knows none."""

    def __repr__(self) -> str:
        """Return the size alone."""
        return f"<SamplesPayload of {self.size_bytes} bytes>"

    @property
    def size_bytes(self) -> int:
        """The length of the whole payload."""
        return len(self.header) + sum(tensor.size_bytes for tensor in self.tensors)

    def iter_chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the payload in pieces of a mebibyte and more; the bytes are the same every time."""
        yield self.header
        for tensor in self.tensors:
            yield from tensor.iter_chunks()

    def to_bytes(self) -> bytes:
        """Return the payload as one string of bytes."""
        return b"".join(self.iter_chunks())

    def compute_receipt(self) -> str:
        """Compute the digest of the bytes, which takes 4 ms for 50 MB of routing rows: run it in a thread."""
        return _compute_digest(self.iter_chunks())


def compute_receipt(payload: bytes) -> str:
    """Compute the digest of a payload that was collected: the receipt that its reply named, 32 hexadecimal digits.

    It tells the payloads of a session apart. It is no proof against forgery: whoever may collect may make one up.
    """
    return _compute_digest([payload])


def _compute_digest(chunks: Iterable[bytes | memoryview]) -> str:
    digest = xxhash.xxh3_128()
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), _BLOCK_BYTES):  # between blocks other threads may run
            digest.update(view[start : start + _BLOCK_BYTES])
    return digest.hexdigest()


def encode_samples(
    samples: Sequence[Sample],
    session_metadata: JsonObject,
    empty_reason: EmptyReason | None = None,
    *,
    history: HistoryKind = HistoryKind.LINEAR,
    agent_metadata: JsonObject | None = None,
) -> SamplesPayload:
    """Lay a reply out; nothing is copied before it is written.

    Args:
        samples: what the trainer gets.
        session_metadata: JSON-ready; arrays of whole numbers stand for lists.
        empty_reason: why there is none.
        history: a tree session sends rewards that are null too.
        agent_metadata: the metadata of the request, where no hook has dealt with it.

    Raises:
        AssemblyError: metadata is not JSON.
    """
    fields = list_fields()
    tensors: list[_Tensor] = []
    entries: list[JsonObject] = []
    for index, sample in enumerate(samples):
        entry: JsonObject = {}
        nulls: list[str] = []
        for field in fields:
            value = sample.tensors.get(field.name) if field.is_of_channel else getattr(sample, field.name)
            if field.dtype is None:
                if value is not None or history is HistoryKind.TREE or not field.is_left_out_when_null:
                    entry[field.name] = _to_json(value)
            elif value is None:
                if not field.is_left_out_when_null:
                    nulls.append(field.name)
            else:
                tensors.append(_Tensor(name=f"{field.name}.{index}", values=value, dtype=field.dtype))
        entries.append(entry | {"nulls": nulls})
    said: JsonObject = {"samples": entries, "session_metadata": session_metadata, "empty_reason": empty_reason}
    meta = _dump(said if agent_metadata is None else {**said, "agent": agent_metadata})
    tensors.append(_Tensor(name=META_KEY, values=np.frombuffer(meta, dtype=np.uint8), dtype=np.dtype("|u1")))
    ordered = tuple(sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize))
    return SamplesPayload(header=_build_header(ordered), tensors=ordered)


def decode_samples(payload: bytes) -> SampleBatch:
    """Read a reply. Keys of the JSON, and tensors, that this version does not know are ignored.

    Raises:
        PayloadError: no safetensors container, no ``_samples_meta``, a promised tensor is missing or has another
            dtype, or a tensor with a known name belongs to no sample.
    """
    try:
        tensors: dict[str, NDArray[Any]] = safetensors.numpy.load(payload)
        meta: JsonObject = orjson.loads(tensors.pop(META_KEY).tobytes())
        entries = cast("list[JsonObject]", meta["samples"])
        agent: JsonObject | None = meta.get("agent")
        given = {key: value for key, value in (agent or {}).items() if key not in OWNED_KEYS}
        fields = [field for field in list_fields() if field.dtype is not None]
        samples = tuple(_read_sample(index, entry, tensors, given, fields) for index, entry in enumerate(entries))
        reason = meta["empty_reason"]
        batch = SampleBatch(
            samples=samples,
            session_metadata=meta["session_metadata"] | ({} if agent is None else {"agent": agent}),
            empty_reason=None if reason is None else EmptyReason(reason),
            receipt=compute_receipt(payload),
        )
    except PayloadError:
        raise
    except KeyError as error:
        raise PayloadError(f"the samples payload lacks {error}") from error
    except (safetensors.SafetensorError, AssemblyError, ValueError, TypeError, AttributeError) as error:
        raise PayloadError(f"this is no samples payload: {error}") from error
    known = {field.name for field in fields}
    if astray := sorted(name for name in tensors if name.rpartition(".")[0] in known):
        raise PayloadError(f"the samples payload holds tensors of no sample: {astray}")
    return batch


def _read_sample(
    index: int,
    entry: JsonObject,
    tensors: dict[str, NDArray[Any]],
    given: JsonObject,
    fields: Sequence[WireField],
) -> Sample:
    arrays: dict[str, NDArray[Any]] = {}
    channels: dict[str, NDArray[Any]] = {}
    for field in fields:
        name = f"{field.name}.{index}"
        if field.name in entry["nulls"] or (field.is_left_out_when_null and name not in tensors):
            continue
        array = tensors.pop(name)
        if array.dtype != field.dtype:
            raise PayloadError(f"{name} must be {field.dtype}, got {array.dtype}")
        (channels if field.is_of_channel else arrays)[field.name] = array
    return Sample(
        **arrays,  # pyright: ignore[reportArgumentType] - of the dtypes that were compared
        tensors=channels,
        response=entry["response"],
        status=SampleStatus(entry["status"]),
        weight_versions=tuple(entry["weight_versions"]),
        prefix_cache_info=PrefixCacheInfo(**entry["prefix_cache_info"]),
        spec_info=SpecInfo(**entry.get("spec_info", {})),
        reward=entry.get("reward"),
        metadata={**given, **entry["metadata"]},
    )


def _to_json(value: object) -> object:
    return value.to_dict() if isinstance(value, PrefixCacheInfo | SpecInfo) else value


def _dump(meta: JsonObject) -> bytes:
    try:
        return encode_json(meta)
    except (TypeError, ValueError) as error:
        raise AssemblyError(f"the metadata of a sample or session is not JSON: {error}") from error


def _build_header(tensors: Sequence[_Tensor]) -> bytes:
    """Build length and JSON, padded with blanks so that the data begins at a multiple of eight."""
    places: JsonObject = {}
    offset = 0
    for tensor in tensors:
        stop = offset + tensor.size_bytes
        places[tensor.name] = {
            "dtype": _CODES[tensor.dtype.str],
            "shape": list(tensor.values.shape),
            "data_offsets": [offset, stop],
        }
        offset = stop
    text = orjson.dumps(places)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
