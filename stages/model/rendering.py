"""From texts to token ids: the chat template where it is applied, raw text where it is not.

A prompt ends with the generation marker; where a conversation is written raw, as a transcript, that is the open answer. A
rendered template is encoded as it is; raw text gets the token that the tokenizer itself begins with. A side of a pair ends
with its end token, as a completion does: what a template writes after it is cut, raw text gets it appended. Prompt and side
are encoded apart, as a completion follows a prompt. A string in a text that is a special token's own is encoded as text.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from transformers import BatchEncoding, PreTrainedTokenizerBase

from stages.core.errors import BaseError, DataError
from stages.files import transcript
from stages.files.base_record import APPLIED, BaseRecord
from stages.files.records import ASSISTANT, USER, Conversation, Message, Pair, Text
from stages.model import templates

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
"""What stands for a special token's string while a template writes the text around it: its number between two noncharacters."""


SPECIAL_STRINGS = "special_strings"
"""A text holds the string of a special token, encoded as text."""
TRANSCRIPTS = "transcripts"
"""A conversation is written as a transcript, since no template is applied."""
OPENED_OTHERWISE = "opened_otherwise"
"""The template opens a side in another way than the generation marker does; it is scored as the template writes it."""
MERGED_TOKENS = "merged_tokens"
"""A side's tokens would be others if prompt and side were encoded as one text; they are encoded apart."""
REWRITTEN_TEXTS = "rewritten_texts"
"""The template leaves a text out or changes it, in more than whitespace."""
NOTES = (SPECIAL_STRINGS, TRANSCRIPTS, OPENED_OTHERWISE, MERGED_TOKENS, REWRITTEN_TEXTS)


class EncodedPair(NamedTuple):
    """Both sides of a pair as whole sequences, each ending with an end token."""

    chosen: list[int]
    rejected: list[int]

    @property
    def longest(self) -> int:
        """Tokens of the longer side."""
        return max(len(self.chosen), len(self.rejected))


@dataclass
class Renderer:
    """Renders with one tokenizer, as base.json says, and counts what a reader of the reports must know of the texts."""

    tokenizer: PreTrainedTokenizerBase
    base: BaseRecord
    unknown: Counter[str] = field(default_factory=Counter)
    """Words that became the unknown token, with how often."""
    tokens: int = 0
    """Tokens of the texts, of those that are rendered twice once."""
    special: Counter[str] = field(default_factory=Counter)
    """Strings of special tokens that texts hold, with how often."""
    notes: Counter[str] = field(default_factory=Counter)
    """The notes, with how often each was called for."""

    def prompt_text(self, prompt: Text) -> str:
        """The prompt as the model sees it, before encoding."""
        return self._unmarked(self._opening(self._marked(prompt)))

    def prompt(self, prompt: Text) -> list[int]:
        """Token ids of a prompt, ready to be completed."""
        marked = self._marked(prompt)
        opening = self._opening(marked)
        self._compare(opening, marked)
        return self._begin(self._encode(opening))

    def pair(self, pair: Pair) -> EncodedPair:
        """Token ids of both sides, prompt included."""
        prompt = None if pair.prompt is None else self._marked(pair.prompt)
        opening = "" if prompt is None else self._opening(prompt)
        begun = self._encode(opening)
        return EncodedPair(*(self._side(prompt, opening, begun, self._marked(side)) for side in (pair.chosen, pair.rejected)))

    def text(self, ids: list[int]) -> str:
        """The text of a completion, special tokens left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def shown(self, ids: list[int]) -> str:
        """A rendered sequence as one line: the text with special tokens, quoted, and the ids."""
        return f"{self.tokenizer.decode(ids)!r} = {ids}"

    def _opening(self, prompt: Text) -> str:
        """The prompt with its generation marker."""
        if self.base.chat_template == APPLIED:
            return self._apply(_turns(prompt, USER), marker=True)
        if isinstance(prompt, str):
            return prompt
        self.notes[TRANSCRIPTS] += 1
        return transcript.write(prompt) + transcript.OPEN_ANSWER

    def _side(self, prompt: Text | None, opening: str, begun: list[int], side: Text) -> list[int]:
        whole = self._whole(prompt, opening, side)
        if whole.startswith(opening):
            ids = begun + self._encode(whole[len(opening) :])
            self.notes[MERGED_TOKENS] += prompt is not None and ids != self._encode(whole, count=False)
        else:
            self.notes[OPENED_OTHERWISE] += 1
            ids = self._encode(whole)
        if self.base.chat_template != APPLIED:
            return [*self._begin(ids), self.base.end_tokens[0]]
        self._compare(whole, side)
        # The prompt's own turns may end with an end token too; the side's is one more.
        ends = [place for place, token in enumerate(ids) if token in self.base.end_tokens]
        its_own = len(ends) > sum(token in self.base.end_tokens for token in begun)
        return ids[: ends[-1] + 1] if its_own else [*ids, self.base.end_tokens[0]]

    def _whole(self, prompt: Text | None, opening: str, side: Text) -> str:
        """Prompt and side as one text."""
        if self.base.chat_template == APPLIED:
            return self._apply([*(() if prompt is None else _turns(prompt, USER)), *_turns(side, ASSISTANT)], marker=False)
        if isinstance(side, str):
            return opening + (side if isinstance(prompt, str | None) else f" {side}")
        written = transcript.write(side)
        if opening:
            return opening + written.removeprefix(transcript.OPEN_ANSWER)
        self.notes[TRANSCRIPTS] += 1
        return written

    def _apply(self, messages: Sequence[Message], *, marker: bool) -> str:
        try:
            return templates.apply(self.tokenizer, [message._asdict() for message in messages], marker=marker)
        except templates.FAULTS as error:
            roles = " then ".join(message.role for message in messages)
            raise DataError(
                f"base.chat_template: the checkpoint's template refuses {roles} ({error}); "
                f"{'give every pair a prompt, or ' if messages[0].role == ASSISTANT else ''}set base.chat_template=off"
            ) from error

    def _compare(self, rendered: str, text: Text) -> None:
        """Counts a text of which a turn is not in what the template wrote."""
        if self.base.chat_template == APPLIED:
            strings = (text,) if isinstance(text, str) else tuple(message.content for message in text)
            self.notes[REWRITTEN_TEXTS] += not all(
                string.strip() in rendered or "".join(string.split()) in "".join(rendered.split()) for string in strings
            )

    def _begin(self, ids: list[int]) -> list[int]:
        begin = self.base.begin_token
        return ids if self.base.chat_template == APPLIED or begin is None else [begin, *ids]

    @cached_property
    def _specials(self) -> list[str]:
        """The strings of special tokens, the longer before what they begin with."""
        found = {str(token) for token in self.tokenizer.added_tokens_decoder.values() if token.special and str(token)}
        return sorted(found, key=lambda string: (-len(string), string))

    @cached_property
    def _special_ids(self) -> set[int]:
        return {number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special}

    @cached_property
    def _special_string(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._specials)) or r"(?!)")

    def _marked(self, text: Text) -> Text:
        """The text with a mark in the place of every special token's string."""
        if isinstance(text, str):
            return self._mark(text)
        return tuple(Message(message.role, self._mark(message.content)) for message in text)

    def _mark(self, text: str) -> str:
        if _OPEN in text:
            raise DataError(f"the text {text!r:.80} holds U+FDD0, which is no character; text alone is expected; remove it from the data")
        if not self._special_string.search(text):
            return text

        def mark(found: re.Match[str]) -> str:
            self.special[found[0]] += 1
            self.notes[SPECIAL_STRINGS] += 1
            return f"{_OPEN}{self._specials.index(found[0])}{_CLOSE}"

        return self._special_string.sub(mark, text)

    def _unmarked(self, text: str) -> str:
        return _MARK.sub(lambda mark: self._specials[int(mark[1])], text)

    def _encode(self, text: str, count: bool = True) -> list[int]:
        """Token ids of a rendered text; what is marked in it is encoded as text, apart from what is around it."""
        pieces = _MARK.split(text) if _OPEN in text else [text]
        ids = []
        for place, piece in enumerate(pieces):
            ids += self._encode_literally(self._specials[int(piece)], count) if place % 2 else self._encode_piece(piece, count)
        if (highest := max(ids, default=0)) >= self.base.vocabulary:
            raise BaseError(
                f"base.model: the tokenizer gives token {highest} ({self.tokenizer.decode([highest])!r:.40}), and the embedding has "
                f"{self.base.vocabulary} rows; resize the model's embedding to its tokenizer and save both"
            )
        return ids

    def _encode_literally(self, string: str, count: bool) -> list[int]:
        """A special token's string as text; by its characters where the tokenizer knows the whole string as a word too."""
        ids = self._encode_piece(string, count=False, split_special_tokens=True)
        pieces = string if self._special_ids.intersection(ids) - {self.tokenizer.unk_token_id} else [string]
        return [token for piece in pieces for token in self._encode_piece(piece, count, split_special_tokens=True)]

    def _encode_piece(self, text: str, count: bool, **options: bool) -> list[int]:
        if not text:
            return []
        encoded = self.tokenizer(text, add_special_tokens=False, **options)
        unknown = self.tokenizer.unk_token_id
        if count:
            self.tokens += len(encoded.input_ids)
            if unknown is not None and unknown in encoded.input_ids and unknown not in self.base.end_tokens:
                for place, token in enumerate(encoded.input_ids):
                    if token == unknown:
                        self.unknown[self._word(text, encoded, place)] += 1
        return list(encoded.input_ids)

    def _word(self, text: str, encoded: BatchEncoding, place: int) -> str:
        span = encoded.token_to_chars(place) if self.tokenizer.is_fast else None
        return text[span.start : span.end] if span else str(self.tokenizer.unk_token)


def _turns(text: Text, role: str) -> Conversation:
    """The messages of a text; of a string the one that it is, by the role."""
    return (Message(role, text),) if isinstance(text, str) else text
