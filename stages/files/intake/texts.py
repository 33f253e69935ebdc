"""Texts as a row has them, strings or lists of chat messages: checked, with the place of all that is wrong.

What is refused in a string: no character that can be seen, and control characters other than tabs and line ends. What is
refused in a list: an unknown role, a message without a text, tool calls, a system turn that is not the first, no messages.
"""

import re
from typing import Any

from stages.files.intake.rows import Row, described
from stages.files.records import ROLES, SYSTEM, Conversation, Message, Text

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
"""C0 and C1, but for tab, line feed, carriage return and next line."""

VISIBLE = re.compile("[^\\s\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
"""Any character but white space, controls, and marks of format, which are not drawn."""

TOOLS = ("tool_calls", "function_call", "tool_call_id")

EMPTY = "a text is expected; put one there or remove the row"


class Reader:
    """Reads the texts of one file's rows; knows what was met that nothing reads."""

    def __init__(self) -> None:
        self.unread: set[str] = set()
        """Keys of messages, beside role and content, that held something."""

    def text(self, row: Row, value: Any, *field: str | int, problems: list[str], empty: str = EMPTY) -> Text | None:
        """The text at a field of the row; None where it has problems, which are added to the list."""
        if isinstance(value, str):
            found = string_problem(value, empty)
            if found is None:
                return value
            problems.append(f"{row.place(*field)}: {row.name(*field)} {found}")
            return None
        if isinstance(value, list):
            return self._conversation(row, value, field, problems)
        problems.append(
            f"{row.place(*field)}: {row.name(*field)} is {described(value)}; a text or a list of messages is expected; put one there"
        )
        return None

    def _conversation(self, row: Row, value: list[Any], field: tuple[str | int, ...], problems: list[str]) -> Conversation | None:
        before = len(problems)
        if not value:
            problems.append(
                f"{row.place(*field)}: {row.name(*field)} is an empty list; at least one message is expected; add one or remove the row"
            )
        messages = []
        for index, item in enumerate(value):
            message = self._message(row, item, (*field, index), problems)
            if message is not None:
                messages.append(message)
                if message.role == SYSTEM and index > 0:
                    second = "a second system turn" if messages[0].role == SYSTEM else "a system turn after others"
                    problems.append(
                        f"{row.place(*field, index)}: {row.name(*field, index)} is {second}; one is expected, and first; join them"
                    )
        return tuple(messages) if len(problems) == before else None

    def _message(self, row: Row, item: Any, field: tuple[str | int, ...], problems: list[str]) -> Message | None:
        def refuse(*key: str, found: str) -> None:
            problems.append(f"{row.place(*field, *key)}: {row.name(*field, *key)} {found}")

        before = len(problems)
        if not isinstance(item, dict):
            refuse(found=f"is {described(item)}; a message {{role, content}} is expected; write it as one")
            return None
        if "role" not in item and "from" in item:
            refuse(found="has from and value; role and content are expected; rename them, with human as user and gpt as assistant")
            return None
        for key in ("role", "content"):
            if key not in item:
                refuse(found=f"has no {key}; a message {{role, content}} is expected; add it")
        role, content = item.get("role"), item.get("content")
        if "role" in item and role not in ROLES:
            shown = f"{role!r:.40}" if isinstance(role, str) else described(role)
            refuse("role", found=f"is {shown}; one of {', '.join(ROLES)} is expected; rename it, or remove the message")
        if "content" in item and not isinstance(content, str):
            parts = ", and parts of a content are not read" if isinstance(content, list) else ""
            refuse("content", found=f"is {described(content)}; a text is expected{parts}; write it as one text")
        if isinstance(content, str) and (found := string_problem(content, "a text is expected; put one there or remove the message")):
            refuse("content", found=found)
        for key, value in item.items():
            if key in ("role", "content") or value is None or value in ([], {}, ""):
                continue
            if key in TOOLS:
                refuse(key, found="calls a tool, which is not read here; remove the message, or the row")
            else:
                self.unread.add(key)
        return Message(str(role), str(content)) if len(problems) == before else None


def is_plain(text: str) -> bool:
    """Whether a string is a text for sure: something on one line, without a character that is not drawn."""
    return text.isprintable() and not text.isspace() and text != ""


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
        place = control.start() + 1
        return f"holds the control character U+{ord(control[0]):04X}, its character {place}; only tabs and line ends are text; remove it"
    return None
