"""Transcripts: what reads as one, its turns, and that writing them gives the text again."""

import pytest

from stages.files import transcript
from stages.files.records import Message

TWO_TURNS = "\n\nHuman: one\n\nstill one \n\nAssistant: two\n\nHuman: three\n\nAssistant:  four"
TURNS = [Message("user", "one\n\nstill one"), Message("assistant", "two"), Message("user", "three"), Message("assistant", "four")]


@pytest.mark.parametrize(
    "text", [TWO_TURNS, "\n\nHuman: a", "Human: a\n\nAssistant: b", "Human: a\n\nAssistant:", " \n\nHuman: a\n\nAssistant: b"]
)
def test_a_text_whose_first_turn_is_labelled_is_a_transcript(text: str):
    assert transcript.is_transcript(text)


@pytest.mark.parametrize(
    "text",
    ["Human: a", "Human:", "a\n\nHuman: b\n\nAssistant: c", "Humans: a\n\nAssistant: b", "human: a\n\nassistant: b", "\n\nHuman a", ""],
)
def test_a_text_with_a_label_elsewhere_or_alone_is_none(text: str):
    assert not transcript.is_transcript(text)


def test_the_turns_of_a_transcript_are_stripped_at_their_ends_alone():
    assert transcript.parse(TWO_TURNS) == TURNS
    assert transcript.parse("Human: a\n\nAssistant:") == [Message("user", "a"), Message("assistant", "")]
    assert transcript.parse("Human: a\nAssistant: b") == [Message("user", "a\nAssistant: b")]
    assert transcript.parse("no label") == []


def test_a_conversation_is_written_as_the_transcript_it_was_read_from():
    text = "\n\nHuman: one\n\nAssistant: two\n\nHuman: three"
    assert transcript.write(transcript.parse(text)) == text
    assert transcript.write([Message("system", "be calm"), Message("user", "one")]) == "be calm\n\nHuman: one"
