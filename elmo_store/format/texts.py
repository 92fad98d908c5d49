"""The hash of a sentence's text, by which it is found: the first 16 bytes of a SHA-256.

It is of the sentence's tokens, each followed by the byte 0xFF, which UTF-8 never has; of each token the bytes that the model
reads, the first 48 where its options say 50 characters a token (lone surrogates are left out): sentences of one hash have the
same vectors.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

UInt64 = npt.NDArray[np.uint64]
Text = str | Sequence[str | bytes]
_END = b"\xff"  # of a token


def text_fault(text: str) -> str | None:
    """Return what keeps a text, or a token, out of every store; None if nothing does."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if 0xDC80 <= code <= 0xDCFF:  # a byte that a reader let through, to be rejected here
            return f"has invalid UTF-8 (0x{code - 0xDC00:02x})"
        return f"has half a surrogate pair (U+{code:04X}), which no UTF-8 can hold"
    return "has a NUL character" if "\0" in text else None


def token_fault(token: str) -> str | None:
    """Return what keeps a token out of every store; None if nothing does."""
    return text_fault(token) if token else "is an empty string"


def words(text: Text) -> list[str | bytes]:
    """The tokens of a text: a string's are what stands between single spaces, none of the empty string. TypeError."""
    if isinstance(text, str):
        return list(text.split(" ")) if text else []
    tokens = list(text)
    strange = [token for token in tokens if not isinstance(token, str | bytes)]
    if strange:
        raise TypeError(
            f"a text is a string, or a sequence of tokens; {strange[0]!r} is not a token"
        )
    return tokens


def cut_bytes(options: Mapping[str, Any]) -> int | None:
    """How many bytes of a token a model with these options reads; None where they don't say."""
    cnn = options.get("char_cnn")
    of_bytes = (
        isinstance(cnn, dict) and cnn.get("alphabet", "bytes") == "bytes"
    )  # others read characters, and more than 48 bytes
    characters = cnn.get("max_characters_per_token") if isinstance(cnn, dict) and of_bytes else None
    return int(characters) - 2 if isinstance(characters, int) and characters > 2 else None


def hash_tokens(lists: pa.ListArray, cut: int | None) -> UInt64:
    """(high, low) of each list of tokens, strings or bytes: [n, 2]. ``cut``: bytes of a token that count, all without one."""
    import pyarrow.compute as pc  # which an import of this package need not pay for

    tokens = lists.values.cast(pa.binary())
    if cut is not None:
        tokens = pc.binary_slice(tokens, 0, cut)
    joined = pc.binary_join(pa.ListArray.from_arrays(lists.offsets, tokens), _END)
    filled = pc.list_value_length(lists).to_pylist()
    sha256 = hashlib.sha256
    digests = [
        sha256(text + _END if n else b"").digest()[:16]
        for text, n in zip(joined.to_pylist(), filled, strict=True)
    ]
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)


def hash_texts(texts: Iterable[Text], cut: int | None) -> UInt64:
    """(high, low) of each text: [n, 2]."""
    encoded = [
        [
            token if isinstance(token, bytes) else token.encode("utf-8", "ignore")
            for token in words(text)
        ]
        for text in texts
    ]
    return hash_tokens(pa.array(encoded, pa.list_(pa.binary())), cut)
