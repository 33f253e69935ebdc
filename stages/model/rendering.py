"""From texts to token ids: the chat template where it is applied, raw text where it is not.

A prompt ends with the generation marker; where a conversation is written raw, as a transcript, that is the open answer. A
rendered template is encoded as it is; raw text gets the token that the tokenizer itself begins with. A side of a pair ends
with its end token, as a completion does: what a template writes after it is cut, raw text gets it appended. Prompt and side
are encoded apart, as a completion follows a prompt. A string in a text that is a special token's own is encoded as text.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
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
"""What fences a text while the template writes around it: two of Unicode's noncharacters, which validate lets no text hold."""

SPECIAL_STRINGS = "special_strings"
"""A text holds the string of a special token, encoded as text."""
TRANSCRIPTS = "transcripts"
"""A conversation is written as a transcript, since no template is applied."""
OPENED_OTHERWISE = "opened_otherwise"
"""The template opens a side in another way than the generation marker does; it is scored as the template writes it."""
MERGED_TOKENS = "merged_tokens"
"""A side's tokens would be others if prompt and side were encoded as one text; they are encoded apart."""
LABELS_IN_TEXTS = "labels_in_texts"
"""A text holds a label that makes another turn of what follows, in the transcript that it is written into."""
REWRITTEN_TEXTS = "rewritten_texts"
"""The template leaves a text out or changes it, in more than whitespace."""
NOTES = (SPECIAL_STRINGS, LABELS_IN_TEXTS, TRANSCRIPTS, OPENED_OTHERWISE, MERGED_TOKENS, REWRITTEN_TEXTS)


class Rendered(NamedTuple):
    """A text as the model is to see it, and where in it the user's own texts stand."""

    text: str
    spans: tuple[tuple[int, int], ...] | None
    """Start and end of each, whitespace around it left out, in order; None where the template changes what it writes."""

    def after(self, start: int) -> "Rendered":
        """What follows a place in the text."""
        spans = None if self.spans is None else tuple((max(0, low - start), high - start) for low, high in self.spans if high > start)
        return Rendered(self.text[start:], spans)


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
    """Special tokens whose strings texts hold, with how often."""
    notes: Counter[str] = field(default_factory=Counter)
    """The notes, with how often each was called for."""
    _written: dict[str, list[int]] = field(default_factory=dict)
    """Special tokens in pieces of the template's own, which are the same in every row."""

    def prompt(self, prompt: Text) -> list[int]:
        """Token ids of a prompt, ready to be completed."""
        opening = self._opening(prompt)
        self._compare(opening.text, prompt)
        return self._begin(self._encode(opening, prompt))

    def pair(self, pair: Pair) -> EncodedPair:
        """Token ids of both sides, prompt included."""
        opening, begun = Rendered("", ()), list[int]()
        if pair.prompt is not None:
            opening = self._opening(pair.prompt)
            self._compare(opening.text, pair.prompt)
            begun = self._encode(opening, pair.prompt)
        return EncodedPair(*(self._side(pair.prompt, opening, begun, side) for side in (pair.chosen, pair.rejected)))

    def text(self, ids: list[int]) -> str:
        """The text of a completion, special tokens left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def shown(self, ids: list[int]) -> str:
        """A rendered sequence as one line: the text with special tokens, quoted, and the ids."""
        return f"{self.tokenizer.decode(ids)!r} = {ids}"

    def _opening(self, prompt: Text) -> Rendered:
        """The prompt with its generation marker."""
        if self.base.chat_template == APPLIED:
            return self._apply(_turns(prompt, USER), marker=True)
        if isinstance(prompt, str):
            return _own(prompt)
        return _own(self._transcript(prompt) + transcript.OPEN_ANSWER)

    def _transcript(self, conversation: Conversation) -> str:
        self.notes[TRANSCRIPTS] += 1
        self.notes[LABELS_IN_TEXTS] += any(transcript.holds_label(message.content) for message in conversation)
        return transcript.write(conversation)

    def _side(self, prompt: Text | None, opening: Rendered, begun: list[int], side: Text) -> list[int]:
        whole = self._whole(prompt, opening.text, side)
        if whole.text.startswith(opening.text):
            ids = begun + self._encode(whole.after(len(opening.text)), side)
            self.notes[MERGED_TOKENS] += prompt is not None and ids != self._encode(whole, prompt, side, count=False)
        else:
            self.notes[OPENED_OTHERWISE] += 1
            ids = self._encode(whole, *([] if prompt is None else [prompt]), side)
        if self.base.chat_template != APPLIED:
            return [*self._begin(ids), self.base.end_tokens[0]]
        self._compare(whole.text, side)
        ends = [place for place, token in enumerate(ids) if token in self.base.end_tokens]
        closing = self._ends_behind(whole, begun, len(ends))
        return ids[: ends[-closing] + 1] if closing else [*ids, self.base.end_tokens[0]]

    def _ends_behind(self, whole: Rendered, begun: list[int], every: int) -> int:
        """How many of all end tokens in a rendered side stand behind its last answer.

        Where the template changes what it writes, so that the answer is not found: those that the prompt has not.
        """
        if whole.spans is None:
            return max(0, every - sum(token in self.base.end_tokens for token in begun))
        return sum(token in self.base.end_tokens for token in self._tokenize(whole.text[whole.spans[-1][1] :]).input_ids)

    def _whole(self, prompt: Text | None, opening: str, side: Text) -> Rendered:
        """Prompt and side as one text."""
        if self.base.chat_template == APPLIED:
            return self._apply([*(() if prompt is None else _turns(prompt, USER)), *_turns(side, ASSISTANT)], marker=False)
        if isinstance(prompt, str | None) and isinstance(side, str):
            return _own(opening + side)
        written = self._transcript(_turns(side, ASSISTANT))
        return _own(opening + written.removeprefix(transcript.OPEN_ANSWER) if opening else written)

    def _apply(self, messages: Sequence[Message], *, marker: bool) -> Rendered:
        try:
            text, fenced = (
                templates.apply(self.tokenizer, [message._asdict() for message in turns], marker=marker)
                for turns in (messages, [Message(role, _fenced(content)) for role, content in messages])
            )
        except templates.FAULTS as error:
            roles = " then ".join(message.role for message in messages)
            raise DataError(
                f"base.chat_template: the checkpoint's template refuses {roles} ({error}); "
                f"{'give every pair a prompt, or ' if messages[0].role == ASSISTANT else ''}set base.chat_template=off"
            ) from error
        return Rendered(text, _spans(text, fenced, len(messages)))

    def _compare(self, rendered: str, text: Text) -> None:
        """Notes a text of which a turn is not in what the template wrote."""
        if self.base.chat_template == APPLIED:
            self.notes[REWRITTEN_TEXTS] += not all(
                string.strip() in rendered or "".join(string.split()) in "".join(rendered.split()) for string in _strings(text)
            )

    def _begin(self, ids: list[int]) -> list[int]:
        begin = self.base.begin_token
        return ids if self.base.chat_template == APPLIED or begin is None else [begin, *ids]

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        """Tokens that no text of a user's may become; the unknown token is none of them."""
        added = self.tokenizer.added_tokens_decoder
        return frozenset(number for number, token in added.items() if token.special) - {self.tokenizer.unk_token_id}

    @cached_property
    def _special_string(self) -> re.Pattern[str]:
        strings = {str(self.tokenizer.added_tokens_decoder[number]) for number in self._special_ids} - {""}
        longest_first = sorted(strings, key=lambda string: (-len(string), string))
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" if strings else r"(?!)()")

    def _encode(self, rendered: Rendered, *texts: Text, count: bool = True) -> list[int]:
        """Token ids of what was rendered of these texts; where one of them became a special token, they are encoded apart, as text."""
        encoded = self._tokenize(rendered.text)
        ids = list(encoded.input_ids)
        found = Counter(token for token in ids if token in self._special_ids)
        pieces: list[tuple[str, bool]] = []
        if found and rendered.spans is None:
            self._require_no_special(texts)
        elif found:
            pieces = list(_pieces(rendered))
            found.subtract(token for piece, is_users in pieces if not is_users for token in self._template_specials(piece))
        if +found and pieces:
            ids = [token for piece, is_users in pieces for token in self._encode_apart(piece, is_users, count)]
            if count:
                self.special.update({str(self.tokenizer.decode([token])): times for token, times in (+found).items()})
                self.notes[SPECIAL_STRINGS] += 1
        elif count:
            self._count(rendered.text, encoded)
        if (highest := max(ids, default=0)) >= self.base.vocabulary:
            raise BaseError(
                f"base.model: the tokenizer gives token {highest} ({self.tokenizer.decode([highest])!r:.40}), and the embedding has "
                f"{self.base.vocabulary} rows; resize the model's embedding to its tokenizer and save both"
            )
        return ids

    def _template_specials(self, piece: str) -> list[int]:
        """The special tokens in what the template itself writes, which is the same in every row."""
        if piece not in self._written:
            self._written[piece] = [token for token in self._tokenize(piece).input_ids if token in self._special_ids]
        return self._written[piece]

    def _encode_apart(self, piece: str, is_users: bool, count: bool) -> list[int]:
        """Token ids of a piece; of a user's, with no special token among them."""
        encoded = self._tokenize(piece, split_special_tokens=is_users)
        parts = [(piece, encoded)]
        if is_users and not self._special_ids.isdisjoint(encoded.input_ids):
            # The tokenizer knows such a string as a word too: character by character it is none.
            split = enumerate(self._special_string.split(piece))
            strings = [string for place, part in split for string in (part if place % 2 else [part])]
            parts = [(string, self._tokenize(string, split_special_tokens=True)) for string in strings]
        ids = [token for _, one in parts for token in one.input_ids]
        if is_users and not self._special_ids.isdisjoint(ids):
            raise DataError(
                f"the text {piece!r:.80} becomes a special token however it is encoded; text alone is expected; remove that string"
            )
        if count:
            for string, one in parts:
                self._count(string, one)
        return ids

    def _require_no_special(self, texts: Sequence[Text]) -> None:
        """Raises DataError where one of these texts becomes a special token by itself, and the template hides where it went."""
        for text in texts:
            for string in _strings(text):
                if not self._special_ids.isdisjoint(self._tokenize(string).input_ids):
                    raise DataError(
                        f"base.chat_template: the template changes the text {string!r:.80}, which holds a special token's string, so that "
                        "it cannot be encoded as text; remove it from the data, or set base.chat_template=off"
                    )

    def _tokenize(self, text: str, **options: bool) -> BatchEncoding:
        return self.tokenizer(text, add_special_tokens=False, **options) if text else BatchEncoding({"input_ids": []})

    def _count(self, text: str, encoded: BatchEncoding) -> None:
        """Counts the tokens of a text, and the words among them that the tokenizer does not know."""
        self.tokens += len(encoded.input_ids)
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and unknown in encoded.input_ids and unknown not in self.base.end_tokens:
            for place, token in enumerate(encoded.input_ids):
                if token == unknown:
                    self.unknown[self._word(text, encoded, place)] += 1

    def _word(self, text: str, encoded: BatchEncoding, place: int) -> str:
        span = encoded.token_to_chars(place) if self.tokenizer.is_fast else None
        return text[span.start : span.end] if span else str(self.tokenizer.unk_token)


def _turns(text: Text, role: str) -> Conversation:
    """The messages of a text; of a string the one that it is, by the role."""
    return (Message(role, text),) if isinstance(text, str) else text


def _strings(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else tuple(message.content for message in text)


def _own(text: str) -> Rendered:
    """A text that no template wrote: all of it is the user's."""
    return Rendered(text, ((0, len(text)),))


def _fenced(text: str) -> str:
    """The text with a fence around all but its outer whitespace, which a template may strip."""
    core = text.strip()
    return text.replace(core, f"{_OPEN}{core}{_CLOSE}", 1)


def _spans(text: str, fenced: str, most: int) -> tuple[tuple[int, int], ...] | None:
    """Where the fenced texts stand in the text without fences; None where that is not what the template wrote with them."""
    spans: list[tuple[int, int]] = []
    plain, *pieces = fenced.split(_OPEN)
    for piece in pieces:
        inside, fence, outside = piece.partition(_CLOSE)
        if not fence or _CLOSE in outside:
            return None
        spans.append((len(plain), len(plain) + len(inside)))
        plain += inside + outside
    return tuple(spans) if plain == text and 0 < len(spans) <= most else None


def _pieces(rendered: Rendered) -> Iterator[tuple[str, bool]]:
    """The text in pieces, each with whether it is the user's."""
    done = 0
    for low, high in rendered.spans or ():
        yield rendered.text[done:low], False
        yield rendered.text[low:high], True
        done = high
    yield rendered.text[done:], False
