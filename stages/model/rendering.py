"""From texts to token ids: the chat template where it is applied, raw text where it is not.

A prompt ends with the generation marker; where a conversation is written raw, as a transcript, that is the open answer. A
rendered template is encoded as it is; raw text gets the token that the tokenizer itself begins with. A side of a pair ends
with its end token, as a completion does: what a template writes after it is cut, raw text gets it appended. A side begins with
the very tokens of its prompt, as what is sampled does: where prompt and side as one text have others, they are encoded apart.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from stages.core.errors import DataError
from stages.files import transcript
from stages.files.base_record import APPLIED, BaseRecord
from stages.files.records import ASSISTANT, USER, Conversation, Message, Pair, Text
from stages.model import templates
from stages.model.encoding import Encoded, Encoder, Rendered, strings

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""What fences a text while the template writes around it: two of Unicode's noncharacters, which validate lets no text hold."""

SPECIAL_STRINGS = "special_strings"
"""A text holds the string of a special token, encoded as text."""
TRANSCRIPTS = "transcripts"
"""A conversation is written as a transcript, since no template is applied."""
LABELS_IN_TEXTS = "labels_in_texts"
"""A turn holds a label that makes another turn of what follows, in the transcript that it is written into."""
REWRITTEN_TEXTS = "rewritten_texts"
"""The template leaves a text out or changes it, in more than whitespace."""
OPENED_OTHERWISE = "opened_otherwise"
"""The template opens a side in another way than the generation marker does; it is scored as the template writes it."""
MERGED_TOKENS = "merged_tokens"
"""Prompt and side as one text have other tokens where they meet; they are encoded apart."""
NOTES = (SPECIAL_STRINGS, LABELS_IN_TEXTS, TRANSCRIPTS, REWRITTEN_TEXTS, OPENED_OTHERWISE, MERGED_TOKENS)


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
    special: Counter[str] = field(default_factory=Counter)
    """Special tokens whose strings texts hold, with how often."""
    notes: Counter[str] = field(default_factory=Counter)
    """The notes, with how often each was called for."""

    def __post_init__(self) -> None:
        self.encoder = Encoder(self.tokenizer, self.base)

    def prompt(self, prompt: Text) -> list[int]:
        """Token ids of a prompt, ready to be completed."""
        return self._begin(self._opened(prompt)[1].ids)

    def pair(self, pair: Pair) -> EncodedPair:
        """Token ids of both sides, prompt included."""
        opening, begun = (Rendered("", ()), Encoded([], Counter())) if pair.prompt is None else self._opened(pair.prompt)
        return EncodedPair(*(self._side(pair.prompt, opening, begun, side) for side in (pair.chosen, pair.rejected)))

    def text(self, ids: list[int]) -> str:
        """The text of a completion, special tokens left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def shown(self, ids: list[int]) -> str:
        """A rendered sequence as one line: the text with special tokens, quoted, and the ids."""
        return f"{self.tokenizer.decode(ids)!r} = {ids}"

    def _opened(self, prompt: Text) -> tuple[Rendered, Encoded]:
        """The prompt with its generation marker, as text and as tokens."""
        if self.base.chat_template == APPLIED:
            opening = self._apply(_turns(prompt, USER), marker=True)
        elif isinstance(prompt, str):
            opening = _own(prompt)
        else:
            opening = _own(self._transcript(prompt) + transcript.OPEN_ANSWER)
        encoded = self.encoder.encode(opening, [prompt])
        self._note(opening, prompt, encoded.became)
        return opening, encoded

    def _side(self, prompt: Text | None, opening: Rendered, begun: Encoded, side: Text) -> list[int]:
        whole = self._whole(prompt, opening, side)
        texts = [side] if prompt is None else [prompt, side]
        encoded = self.encoder.encode(whole, texts)
        ids, became = encoded.ids, encoded.became - begun.became
        if not whole.text.startswith(opening.text):
            self.notes[OPENED_OTHERWISE] += 1
        elif ids[: len(begun.ids)] != begun.ids:
            self.notes[MERGED_TOKENS] += 1
            rest = self.encoder.encode(whole.after(len(opening.text)), [side])
            ids, became = begun.ids + rest.ids, rest.became
        self._note(whole, side, became)
        if self.base.chat_template != APPLIED:
            return [*self._begin(ids), self.base.end_tokens[0]]
        return self._ended(ids, whole)

    def _ended(self, ids: list[int], whole: Rendered) -> list[int]:
        """The tokens of a side up to the first end token behind its last answer, which gets one where the template writes none.

        Where the template changes the answer's end, so that it is not found, an end token with nothing but whitespace behind it
        is taken for it.
        """
        ends = [place for place, token in enumerate(ids) if token in self.base.end_tokens]
        if whole.end is None:
            closing = int(bool(ends) and not self.tokenizer.decode(ids[ends[-1] + 1 :]).strip())
        else:
            closing = self.encoder.ends_in(whole.text[whole.end :])
        return ids[: ends[-closing] + 1] if closing else [*ids, self.base.end_tokens[0]]

    def _whole(self, prompt: Text | None, opening: Rendered, side: Text) -> Rendered:
        """Prompt and side as one text."""
        if self.base.chat_template == APPLIED:
            whole = self._apply([*(() if prompt is None else _turns(prompt, USER)), *_turns(side, ASSISTANT)], marker=False)
            if whole.spans is None and whole.text.startswith(opening.text) and not self.encoder.holds_special(side):
                return whole._replace(spans=opening.spans)  # no special token behind the prompt can be the user's
            return whole
        if isinstance(prompt, str | None) and isinstance(side, str):
            return _own(opening.text + side)
        written = self._transcript(_turns(side, ASSISTANT))
        return _own(opening.text + written.removeprefix(transcript.OPEN_ANSWER) if prompt is not None else written)

    def _transcript(self, conversation: Conversation) -> str:
        self.notes[TRANSCRIPTS] += 1
        self.notes[LABELS_IN_TEXTS] += any(transcript.holds_label(message.content) for message in conversation)
        return transcript.write(conversation)

    def _apply(self, messages: Sequence[Message], *, marker: bool) -> Rendered:
        try:
            text = templates.apply(self.tokenizer, messages, marker=marker)
        except templates.FAULTS as error:
            roles = " then ".join(message.role for message in messages)
            raise DataError(
                f"base.chat_template: the checkpoint's template refuses {roles} ({error}); "
                f"{'give every pair a prompt, or ' if messages[0].role == ASSISTANT else ''}set base.chat_template=off"
            ) from error
        try:
            spans = _spans(text, templates.apply(self.tokenizer, list(map(_fenced, messages)), marker=marker), len(messages))
            if spans is not None:
                return Rendered(text, spans, spans[-1][1])
            closed = templates.apply(self.tokenizer, [*messages[:-1], _closed(messages[-1])], marker=marker)
        except templates.FAULTS:  # of what a fence does to a text; the text itself it takes
            return Rendered(text, None)
        return Rendered(text, None, closed.index(_CLOSE) if closed.count(_CLOSE) == 1 and closed.replace(_CLOSE, "") == text else None)

    def _note(self, rendered: Rendered, text: Text, became: Counter[int]) -> None:
        """Counts what was noticed of a text: words that are not known, special tokens' strings, turns that are not in what was written."""
        self.encoder.count(text)
        if became:
            self.special.update({str(self.tokenizer.decode([token])): times for token, times in became.items()})
            self.notes[SPECIAL_STRINGS] += 1
        if self.base.chat_template == APPLIED:
            self.notes[REWRITTEN_TEXTS] += not all(
                string.strip() in rendered.text or "".join(string.split()) in "".join(rendered.text.split()) for string in strings(text)
            )

    def _begin(self, ids: list[int]) -> list[int]:
        begin = self.base.begin_token
        return ids if self.base.chat_template == APPLIED or begin is None else [begin, *ids]


def _turns(text: Text, role: str) -> Conversation:
    """The messages of a text; of a string the one that it is, by the role."""
    return (Message(role, text),) if isinstance(text, str) else text


def _own(text: str) -> Rendered:
    """A text that no template wrote: all of it is the user's."""
    return Rendered(text, ((0, len(text)),), len(text))


def _fenced(message: Message) -> Message:
    """The message with a fence around all of its content but the outer whitespace, which a template may strip."""
    core = message.content.strip()
    return message._replace(content=message.content.replace(core, f"{_OPEN}{core}{_CLOSE}", 1))


def _closed(message: Message) -> Message:
    """The message with the end of the fence alone."""
    core = message.content.rstrip()
    return message._replace(content=core + _CLOSE + message.content[len(core) :])


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
