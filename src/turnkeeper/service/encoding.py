"""The fast tokenizer in a server: loaded and checked beside the first turns, compared with `tokenizers` from then on.

::

    tokenizers serves -> loaded in a thread -> checked on every probe -> fastokens serves -> a difference -> tokenizers

Nothing is rendered again at either change: both give the same ids, or the fast one goes. What was sent to an engine is
what the session holds in any case.
"""

import asyncio
import ctypes
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from turnkeeper.choices import TokenizerBackend
from turnkeeper.clock import Clock
from turnkeeper.errors import ConfigError
from turnkeeper.metrics import Metrics
from turnkeeper.rendering import Renderer
from turnkeeper.rendering.checks import EncodingMismatch, check_encoder
from turnkeeper.rendering.tokenization import Encoder, FallbackEncoder

logger = logging.getLogger("turnkeeper.encoding")

LOAD_DELAY_S = 1.0
"""How long the server serves before it loads the fast tokenizer: the first turns have the machine for themselves."""

COMPARE_INTERVAL_S = 5.0
"""How often a text of a turn is compared, at most."""

COMPARE_SHARE = 0.01
"""The most of one core that comparing may take."""

LIBRARY_SETTINGS = {
    # Neither library gets threads of its own: a turn has one text, and each thread of the fast one keeps a cache of up
    # to 180 MB.
    "FASTOKENS_BPE_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables that the libraries read when first used."""

LoadEncoder = Callable[[], Encoder]


class EncoderSelector:
    """Selects the library that encodes for one server."""

    def __init__(
        self,
        renderer: Renderer,
        load: LoadEncoder | None,
        *,
        clock: Clock,
        metrics: Metrics,
        from_the_start: bool = False,
    ) -> None:
        """Keep the parts.

        Args:
            renderer: its tokenizer's encoder is replaced.
            load: loads the fast encoder; None where it is not to be used.
            clock: paces the comparisons.
            metrics: is told of each comparison.
            from_the_start: whether the fast encoder is loaded here, rather than in the background by ``run``.

        Raises:
            ConfigError: the fast encoder is loaded here, and it cannot be loaded or gives other ids.
        """
        self._renderer = renderer
        self._tokenizer = renderer.tokenizer
        self._load = load
        self._clock = clock
        self._metrics = metrics
        self._fast: FallbackEncoder | None = None
        self._refused = 0
        for backend in (TokenizerBackend.TOKENIZERS, TokenizerBackend.FASTOKENS):
            metrics.register_gauge(
                "turnkeeper_tokenizer", lambda name=backend: float(self.serving is name), backend=str(backend)
            )
        if from_the_start:
            self._take_over()

    @property
    def serving(self) -> TokenizerBackend:
        """The library that encodes at the moment."""
        return TokenizerBackend.TOKENIZERS if self._fast is None else TokenizerBackend.FASTOKENS

    def _take_over(self) -> None:
        """Load and check the fast encoder, and let it encode.

        Raises:
            ConfigError: it cannot be loaded, or gives other ids.
        """
        if self._load is None:
            return
        load, self._load = self._load, None
        started = self._clock.now()
        fast = FallbackEncoder(load(), self._tokenizer.huggingface_encoder)
        mismatch = check_encoder(fast, self._renderer)
        if mismatch is not None:
            raise ConfigError(f"fastokens is not used: {mismatch.describe(self._tokenizer)}")
        fast.take_kept()
        self._fast, self._refused = fast, fast.refused
        self._tokenizer.encoder = fast
        release_memory()
        logger.info("fastokens encodes from now on: loaded and checked in %.1f s", self._clock.now() - started)

    async def run(self) -> None:
        """Let the fast encoder take over, then compare it for as long as it serves."""
        if self._load is not None:
            await self._clock.sleep(LOAD_DELAY_S)
            try:
                await _run_apart(self._take_over)
            except ConfigError as error:
                logger.warning("tokenizers goes on encoding: %s", error)
        pause_s = COMPARE_INTERVAL_S
        while self._fast is not None:
            await self._clock.sleep(pause_s)
            started = self._clock.now()
            await self.compare(self._fast)
            pause_s = plan_pause(self._clock.now() - started)

    async def compare(self, fast: FallbackEncoder) -> None:
        """Encode the text that was kept once more by `tokenizers`; at a difference that encodes from then on."""
        self._metrics.count("turnkeeper_tokenizer_refusals", fast.refused - self._refused)
        self._refused = fast.refused
        kept = fast.take_kept()
        if kept is None:
            return
        expected = await asyncio.to_thread(self._tokenizer.huggingface_encoder.encode, kept.text)
        is_equal = expected.tolist() == kept.ids.tolist()
        self._metrics.count("turnkeeper_tokenizer_comparisons", outcome="equal" if is_equal else "different")
        if not is_equal:
            self._tokenizer.encoder, self._fast = self._tokenizer.huggingface_encoder, None
            mismatch = EncodingMismatch(text=kept.text, expected=expected, found=kept.ids)
            logger.error(  # without the text, which an agent wrote
                "tokenizers encodes from now on: the fast encoder gave other ids from token %d of %d on",
                mismatch.place,
                len(expected),
            )


def limit_libraries() -> None:
    """Keep both libraries from starting threads, in a process of our own, before either has encoded anything."""
    for name, value in LIBRARY_SETTINGS.items():
        os.environ.setdefault(name, value)


def find_loader(backend: TokenizerBackend, tokenizer_json: bytes) -> LoadEncoder | None:
    """Find the function that loads the fast encoder; None where `tokenizers` is to encode.

    Raises:
        ConfigError: it is asked for and not installed.
    """
    if backend is TokenizerBackend.TOKENIZERS:
        return None
    if find_spec("fastokens") is None:
        if backend is TokenizerBackend.FASTOKENS:
            raise ConfigError("--tokenizer-backend fastokens: it is not installed", hint="pip install turnkeeper[fast]")
        return None

    def load() -> Encoder:
        from turnkeeper.rendering.tokenization.fast_encoder import (
            FastEncoder,
        )  # not at the top: the package is optional

        return FastEncoder(tokenizer_json)

    return load


def release_memory() -> None:
    """Give back what loading a tokenizer left behind: with glibc half of it, 50 MB and 110 MB, in 10 ms."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def plan_pause(took_s: float) -> float:
    """Choose the wait after a comparison by the time that the comparison took, in seconds."""
    return max(COMPARE_INTERVAL_S, took_s / COMPARE_SHARE)


async def _run_apart(work: Callable[[], None]) -> None:
    """Run in a thread that ends behind it: what the fast encoder remembers for a thread goes with it."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="encoding")
    try:
        await asyncio.get_running_loop().run_in_executor(pool, work)
    finally:
        pool.shutdown(wait=False)
