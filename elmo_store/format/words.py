"""How much of a word a model reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WordLimit:
    """What a model reads of a word: ``most`` bytes of its UTF-8 (lone surrogates left out), or characters."""

    most: int = 48
    unit: str = "bytes"  # or "characters"

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "WordLimit":
        """Of a model with these options, as a store's manifest has them; what they don't say is as in the published models."""
        cnn = options.get("char_cnn")
        said = cnn if isinstance(cnn, Mapping) else {}
        characters = said.get(
            "max_characters_per_token"
        )  # with a marker before the word and one after it
        of_characters = said.get("alphabet") == "characters"
        most = characters - 2 if isinstance(characters, int) else cls.most
        return cls(most, "characters" if of_characters else "bytes")

    def truncates(self, word: str) -> bool:
        """Whether a word is longer."""
        if self.unit == "characters":
            return len(word) > self.most
        # A character takes at most 4 bytes: most words are known to fit without being encoded.
        return len(word) > self.most // 4 and len(word.encode("utf-8", "ignore")) > self.most

    def n_truncated(self, words: Iterable[str]) -> int:
        """How many of the words are longer."""
        return sum(map(self.truncates, words))

    def __str__(self) -> str:
        return f"{self.most} {self.unit}"
