"""The fast encoder, built on the package `fastokens`.

The package is optional: importing this module raises ``ImportError`` where `fastokens` is not installed.
"""

import numpy as np
from fastokens import Tokenizer as FastTokenizer

from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.errors import ConfigError
from turnkeeper.rendering.tokenization.encoder import LONG_S, RefusedTextError


class FastEncoder:
    """Encodes with `fastokens`. Use it only after ``check_encoder`` found no mismatch with `tokenizers`."""

    def __init__(self, tokenizer_json: bytes) -> None:
        """Load a tokenizer, which takes one to three seconds, nearly all of it without the interpreter lock.

        Raises:
            ConfigError: the library does not support this tokenizer.
        """
        try:
            self._inner = FastTokenizer.from_json_str(tokenizer_json.decode())
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # its panics are no Exceptions
            raise ConfigError(f"fastokens does not support this tokenizer: {error}") from error
        self._inner.no_padding()
        self._inner.no_truncation()

    def encode(self, text: str) -> TokenIds:
        """Return the ids of a text; see ``Encoder``.

        Raises:
            RefusedTextError: the library failed on the text, or is known to get such texts wrong.
        """
        if LONG_S in text:  # patterns that ignore case take it for an s, which the library does not do for all of them
            raise RefusedTextError("a long s")
        try:
            ids, _ = self._inner.encode_batch_flat([text])  # the call that makes no Python integers
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # its panics are no Exceptions
            raise RefusedTextError(str(error)) from error
        return freeze_ids(np.frombuffer(ids, dtype="<u4"))
