"""The side channels that there are, in the order in which they are asked for, kept and put into samples."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from turnkeeper.channels.channel import Capture, CaptureSettings, Channel, SampleTensor
from turnkeeper.channels.indexer import IndexerTopk
from turnkeeper.channels.masks import SamplingMasks
from turnkeeper.channels.routing.channel import RoutedExperts


class ChannelTable(Mapping[str, Channel]):
    """Channels by name, and what they declare together."""

    def __init__(self, *channels: Channel) -> None:
        """List channels in their order."""
        self._channels = {channel.name: channel for channel in channels}

    def __getitem__(self, name: str) -> Channel:
        return self._channels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def __len__(self) -> int:
        return len(self._channels)

    @cached_property
    def members(self) -> frozenset[str]:
        """The members of a reply's meta data that hold payloads."""
        return frozenset(name for each in self.values() for name in each.members)

    @cached_property
    def payload_keys(self) -> tuple[bytes, ...]:
        """The quoted keys of payloads in base64."""
        return tuple(b'"%s"' % name.encode() for each in self.values() for name in each.payload_keys)

    @cached_property
    def fields(self) -> frozenset[str]:
        """The fields of requests by which engines are asked."""
        return frozenset(name for each in self.values() for name in each.fields)

    @cached_property
    def tensors(self) -> tuple[SampleTensor, ...]:
        """The tensors that samples may have of channels."""
        return tuple(tensor for each in self.values() for tensor in each.tensors)

    def list_needing_checkpoint(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """List the channels that options ask for and that read sizes out of the checkpoint's ``config.json``."""
        return tuple(name for name, each in self.items() if each.needs_checkpoint and each.is_on(options))

    def open(self, settings: CaptureSettings) -> tuple[Capture, ...]:
        """Make the captures of a server.

        Raises:
            ConfigError: its options do not fit the model.
        """
        return tuple(each.open(settings) for each in self.values() if each.is_on(settings.options))

    def add(self, channel: Channel) -> None:
        """Add a channel behind the others, under a name that none of them has."""
        self._channels[channel.name] = channel
        self._forget()

    def remove(self, name: str) -> None:
        """Remove a channel."""
        del self._channels[name]
        self._forget()

    def _forget(self) -> None:
        for name in ("members", "payload_keys", "fields", "tensors"):
            self.__dict__.pop(name, None)


CHANNELS = ChannelTable(RoutedExperts(), IndexerTopk(), SamplingMasks())
