"""Texts as a row has them, strings or lists of chat messages: checked, with the place of all that is wrong.

What is refused in a string: no character that can be seen, and control characters other than tabs and line ends. What is
refused in a list: an unknown role, a message without a text, tool calls, a system turn that is not the first, no messages.
"""

import re
from typing import Any

from stages.files.intake.rows import Row, described
from stages.files.records import ROLES, SYSTEM, Conversation, Message, Text

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufdd0-\ufdef\ufffe\uffff]")
"""C0 and C1, but for tab, line feed, carriage return and next line; and noncharacters, which rendering fences texts with."""

VISIBLE = re.compile(
    "[^\\s\x00-\x1f\x7f-\x9f\xad\u0300-\u036f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef]"
)
"""Any character that is drawn: not white space, controls, marks of format, accents without a letter, fillers."""

TOOLS = ("tool_calls", "function_call", "tool_call_id")

EMPTY = "a text is expected; put one there or remove the row"


class Reader:
    """Reads the texts of one file's rows, and keeps what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.unread: set[str] = set()
        """Keys of messages, beside role and content, that held something."""

    def refuse(self, row: Row, *field: str | int, found: str) -> None:
        """Keeps a problem of the row, or of one of its fields: what was found there, what was expected, what to do."""
        self.problems.append(f"{row.place(*field)}: {row.name(*field)} {found}")

    def text(self, row: Row, value: Any, *field: str | int, empty: str = EMPTY) -> Text | None:
        """The text at a field of the row; None where it has problems."""
        if isinstance(value, list):
            return self._conversation(row, value, field)
        if not isinstance(value, str):
            self.refuse(row, *field, found=f"is {described(value)}; a text or a list of messages is expected; put one there")
            return None
        found = string_problem(value, empty)
        if found is not None:
            self.refuse(row, *field, found=found)
            return None
        return value

    def _conversation(self, row: Row, value: list[Any], field: tuple[str | int, ...]) -> Conversation | None:
        before = len(self.problems)
        if not value:
            self.refuse(row, *field, found="is an empty list; at least one message is expected; add one or remove the row")
        messages: list[Message] = []
        for index, item in enumerate(value):
            message = self._message(row, item, (*field, index))
            if message is None:
                continue
            messages.append(message)
            if message.role == SYSTEM and index > 0:
                which = "a second system turn" if messages[0].role == SYSTEM else "a late system turn"
                self.refuse(row, *field, index, found=f"is {which}; at most one is expected, as the first message; move or join it")
        return tuple(messages) if len(self.problems) == before else None

    def _message(self, row: Row, item: Any, field: tuple[str | int, ...]) -> Message | None:
        before = len(self.problems)
        if not isinstance(item, dict):
            self.refuse(row, *field, found=f"is {described(item)}; a message {{role, content}} is expected; write it as one")
            return None
        if "role" not in item and "from" in item:
            advice = "rename from and value, and write user for human and assistant for gpt"
            self.refuse(row, *field, found=f"has from; role and content are expected; {advice}")
            return None
        for key in ("role", "content"):
            if key not in item:
                self.refuse(row, *field, found=f"has no {key}; a message {{role, content}} is expected; add it")
        role, content = item.get("role"), item.get("content")
        if "role" in item and role not in ROLES:
            shown = f"{role!r:.40}" if isinstance(role, str) else described(role)
            advice = "rename it where that is meant, or remove it"
            self.refuse(row, *field, "role", found=f"is {shown}; one of {', '.join(ROLES)} is expected; {advice}")
        if "content" in item and not isinstance(content, str):
            parts = ", and parts of a content are not read" if isinstance(content, list) else ""
            self.refuse(row, *field, "content", found=f"is {described(content)}; a text is expected{parts}; write it as one text")
        if isinstance(content, str) and (found := string_problem(content, "a text is expected; put one there or remove the message")):
            self.refuse(row, *field, "content", found=found)
        for key, value in item.items():
            if key in ("role", "content") or not value:
                continue
            if key in TOOLS:
                self.refuse(row, *field, key, found="is of a tool's call, which is not read here; remove the message, or the row")
            else:
                self.unread.add(key)
        return Message(str(role), str(content)) if len(self.problems) == before else None


def is_plain(text: str) -> bool:
    """Whether a string is a text for sure, and no transcript: something that is drawn, on one line."""
    return text.isprintable() and VISIBLE.search(text) is not None


def string_problem(text: str, empty: str) -> str | None:
    """What keeps a string from being a text that says something; None where nothing does."""
    if is_plain(text):
        return None
    if not text:
        return f"is empty; {empty}"
    if VISIBLE.search(text) is None and not CONTROL.search(text):
        nothing = "whitespace" if text.isspace() else "characters that cannot be seen"
        return f"holds nothing but {nothing}; {empty}"
    if control := CONTROL.search(text):
        kind = "control character" if control[0] < "\ufdd0" else "noncharacter"
        place = control.start() + 1
        return f"holds the {kind} U+{ord(control[0]):04X}, its character {place}; of such only tabs and line ends are text; remove it"
    return None
