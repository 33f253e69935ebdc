"""From texts to token ids: the chat template where it is applied, raw text where it is not.

A prompt ends with the generation marker. A rendered template is encoded as it is; raw text gets the token that the
tokenizer itself begins with. A side of a pair ends with its end token, as a completion does: what a template writes
after it is cut, raw text gets it appended. Prompt and side are encoded apart, as a completion follows a prompt.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from transformers import BatchEncoding, PreTrainedTokenizerBase

from stages.core.errors import BaseError, DataError
from stages.files.base_record import APPLIED, BaseRecord
from stages.files.records import Pair
from stages.model import templates


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
    """Renders with one tokenizer, as base.json says, and counts the words that the tokenizer does not know."""

    tokenizer: PreTrainedTokenizerBase
    base: BaseRecord
    unknown: Counter[str] = field(default_factory=Counter)
    """Words that became the unknown token, with how often."""

    def prompt_text(self, prompt: str) -> str:
        """The prompt as the model sees it, before encoding."""
        if self.base.chat_template != APPLIED:
            return prompt
        return self._apply([{"role": "user", "content": prompt}], marker=True)

    def prompt(self, prompt: str) -> list[int]:
        """Token ids of a prompt, ready to be completed."""
        return self._begin(self._encode(self.prompt_text(prompt)))

    def pair(self, pair: Pair) -> EncodedPair:
        """Token ids of both sides, prompt included."""
        return EncodedPair(self._side(pair.prompt, pair.chosen), self._side(pair.prompt, pair.rejected))

    def text(self, ids: list[int]) -> str:
        """The text of a completion, special tokens left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def shown(self, ids: list[int]) -> str:
        """A rendered sequence as one line: the text with special tokens, quoted, and the ids."""
        return f"{self.tokenizer.decode(ids)!r} = {ids}"

    def _side(self, prompt: str | None, side: str) -> list[int]:
        if self.base.chat_template != APPLIED:
            begun = self._begin(self._encode(prompt or ""))
            return [*begun, *self._encode(side), self.base.end_tokens[0]]
        turns = [] if prompt is None else [{"role": "user", "content": prompt}]
        whole = self._apply([*turns, {"role": "assistant", "content": side}], marker=False)
        opening = "" if prompt is None else self.prompt_text(prompt)
        if not whole.startswith(opening):
            raise DataError(
                f"base.chat_template: the template writes the prompt {prompt!r:.80} otherwise before an answer than before "
                "the generation marker, so a score would be read off another text than was sampled; set base.chat_template=off"
            )
        ids = self._encode(whole[len(opening) :])
        ends = [place for place, token in enumerate(ids) if token in self.base.end_tokens]
        ids = ids[: ends[-1] + 1] if ends else [*ids, self.base.end_tokens[0]]
        return [*self._encode(opening), *ids]

    def _apply(self, messages: list[dict[str, str]], *, marker: bool) -> str:
        try:
            return templates.apply(self.tokenizer, messages, marker=marker)
        except templates.FAULTS as error:
            roles = " then ".join(message["role"] for message in messages)
            raise DataError(
                f"base.chat_template: the checkpoint's template refuses {roles} ({error}); "
                f"{'' if messages[0]['role'] == 'user' else 'give every pair a prompt, or '}set base.chat_template=off"
            ) from error

    def _begin(self, ids: list[int]) -> list[int]:
        begin = self.base.begin_token
        if self.base.chat_template == APPLIED or begin is None or ids[:1] == [begin]:
            return ids
        return [begin, *ids]

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        encoded = self.tokenizer(text, add_special_tokens=False)
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and unknown in encoded.input_ids and unknown not in self.base.end_tokens:
            for place, token in enumerate(encoded.input_ids):
                if token == unknown:
                    self.unknown[self._word(text, encoded, place)] += 1
        if (highest := max(encoded.input_ids, default=0)) >= self.base.vocabulary:
            raise BaseError(
                f"base.model: the tokenizer gives token {highest} ({self.tokenizer.decode([highest])!r:.40}), and the embedding has "
                f"{self.base.vocabulary} rows; resize the model's embedding to its tokenizer and save both"
            )
        return list(encoded.input_ids)

    def _word(self, text: str, encoded: BatchEncoding, place: int) -> str:
        span = encoded.token_to_chars(place) if self.tokenizer.is_fast else None
        return text[span.start : span.end] if span else str(self.tokenizer.unk_token)
