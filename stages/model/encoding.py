"""From rendered text to token ids, in which no text of a user's becomes a special token.

A tokenizer takes the string of a special token for the token wherever it stands. So the special tokens of a rendered text are
held against those that the template itself writes; where there are more, the user's texts are encoded apart, as text.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from transformers import BatchEncoding, PreTrainedTokenizerBase

from stages.core.errors import BaseError, DataError
from stages.files.base_record import BaseRecord
from stages.files.records import Text

PROBE = "\U0003fffd"
"""A character that no tokenizer has a word for: it becomes bytes, or the unknown token."""


class Rendered(NamedTuple):
    """A text as the model is to see it, and where in it the user's own texts stand."""

    text: str
    spans: tuple[tuple[int, int], ...] | None
    """Start and end of each, whitespace around it left out, in order; None where the template changes what it writes."""
    end: int | None = None
    """Where the last of them ends; None where the template changes that one's end."""

    def after(self, start: int) -> "Rendered":
        """What follows a place in the text."""
        spans = None if self.spans is None else tuple((max(0, low - start), high - start) for low, high in self.spans if high > start)
        return Rendered(self.text[start:], spans, None if self.end is None else self.end - start)

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """The text in pieces, each with whether it is the user's."""
        done = 0
        for low, high in self.spans or ():
            yield self.text[done:low], False
            yield self.text[low:high], True
            done = high
        yield self.text[done:], False


class Encoded(NamedTuple):
    """Token ids, and the special tokens whose strings the user's texts hold, which are not among them."""

    ids: list[int]
    became: Counter[int]


@dataclass
class Encoder:
    """Encodes with one tokenizer, and counts the words that it does not know."""

    tokenizer: PreTrainedTokenizerBase
    base: BaseRecord
    unknown: Counter[str] = field(default_factory=Counter)
    """Words that became the unknown token, with how often."""
    tokens: int = 0
    """Tokens of the texts that were counted; of a tokenizer that knows every text none are."""
    _written: dict[str, list[int]] = field(default_factory=dict)
    """Special tokens in pieces of the template's own, which are the same in every row."""

    def encode(self, rendered: Rendered, texts: Sequence[Text]) -> Encoded:
        """Token ids of what was rendered of these texts; raises DataError where it cannot be told what is the user's."""
        ids = self._ids(rendered.text)
        became = Counter(token for token in ids if token in self._special_ids)
        if became and rendered.spans is None:
            self._require_no_special(texts)
            became.clear()
        elif became:
            pieces = list(rendered.pieces())
            became.subtract(token for piece, is_users in pieces if not is_users for token in self._specials_of(piece))
            if +became:
                ids = [token for piece, is_users in pieces for token in (self._as_text(piece) if is_users else self._ids(piece))]
        if (highest := max(ids, default=0)) >= self.base.vocabulary:
            raise BaseError(
                f"base.model: the tokenizer gives token {highest} ({self.tokenizer.decode([highest])!r:.40}), and the embedding has "
                f"{self.base.vocabulary} rows; resize the model's embedding to its tokenizer and save both"
            )
        return Encoded(ids, +became)

    def holds_special(self, text: Text) -> bool:
        """Whether a text by itself becomes a special token somewhere."""
        return any(not self._special_ids.isdisjoint(self._ids(string)) for string in strings(text))

    def ends_in(self, text: str) -> int:
        """How many end tokens a text has."""
        return sum(token in self.base.end_tokens for token in self._ids(text))

    def count(self, text: Text) -> None:
        """Counts the tokens of a text, and the words in it that the tokenizer does not know."""
        if self._unknown_id is None:
            return
        for string in strings(text):
            encoded = self._tokenize(string, split_special_tokens=True)
            self.tokens += len(encoded.input_ids)
            for place, token in enumerate(encoded.input_ids):
                if token == self._unknown_id:
                    span = encoded.token_to_chars(place) if self.tokenizer.is_fast else None
                    self.unknown[string[span.start : span.end] if span else str(self.tokenizer.unk_token)] += 1

    @cached_property
    def _unknown_id(self) -> int | None:
        """The token of what the tokenizer has no word for; None where it has bytes for it, whatever it calls its unknown token."""
        ids = self._ids(PROBE, split_special_tokens=True)
        return self.tokenizer.unk_token_id if self.tokenizer.unk_token_id in ids else None

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        """Tokens that no text of a user's may become; the unknown token, where text does become it, is none of them."""
        added = self.tokenizer.added_tokens_decoder
        return frozenset(number for number, token in added.items() if token.special) - {self._unknown_id}

    @cached_property
    def _special_string(self) -> re.Pattern[str]:
        found = {str(self.tokenizer.added_tokens_decoder[number]) for number in self._special_ids} - {""}
        longest_first = sorted(found, key=lambda string: (-len(string), string))
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" if found else r"(?!)()")

    def _specials_of(self, piece: str) -> list[int]:
        if piece not in self._written:
            self._written[piece] = [token for token in self._ids(piece) if token in self._special_ids]
        return self._written[piece]

    def _as_text(self, piece: str) -> list[int]:
        """Token ids of a user's text with no special token among them."""
        ids = self._ids(piece, split_special_tokens=True)
        if self._special_ids.isdisjoint(ids):
            return ids
        # The tokenizer knows such a string as a word too: character by character it is none.
        split = enumerate(self._special_string.split(piece))
        parts = [string for place, part in split for string in (part if place % 2 else [part])]
        ids = [token for string in parts for token in self._ids(string, split_special_tokens=True)]
        if not self._special_ids.isdisjoint(ids):
            raise DataError(f"the text {piece!r:.80} is a special token however it is encoded; text alone is expected; remove that string")
        return ids

    def _require_no_special(self, texts: Sequence[Text]) -> None:
        """Raises DataError where one of these texts becomes a special token by itself, and the template hides where it went."""
        for string in (string for text in texts for string in strings(text) if self.holds_special(string)):
            raise DataError(
                f"base.chat_template: the template changes what it writes around {string!r:.80}, which holds a special token's string: "
                "it cannot be encoded as text; remove it from the data, or set base.chat_template=off"
            )

    def _ids(self, text: str, **options: bool) -> list[int]:
        return list(self._tokenize(text, **options).input_ids)

    def _tokenize(self, text: str, **options: bool) -> BatchEncoding:
        return self.tokenizer(text, add_special_tokens=False, **options) if text else BatchEncoding({"input_ids": []})


def strings(text: Text) -> tuple[str, ...]:
    """The strings of a text: itself, or the contents of its turns."""
    return (text,) if isinstance(text, str) else tuple(message.content for message in text)
