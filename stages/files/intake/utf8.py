"""A user's text file as UTF-8: its lines, or where it is something else."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stages.core.errors import DataError

BOM = b"\xef\xbb\xbf"
CURE = "the file must be UTF-8; convert it, for example with iconv"

_COMPRESSED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstandard", b"BZh91AY": "bzip2", b"\xfd7zXZ": "xz"}


class Line(NamedTuple):
    """A line without its line feed; `problem` says where it is not UTF-8."""

    number: int
    text: str
    size: int
    """Bytes of the line in the file."""
    problem: str | None = None


def require_text(path: Path, head: bytes) -> None:
    """Raises DataError where the first bytes of a file are those of another encoding, or of a compressed file."""
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise DataError(f"{path}: the file is compressed ({name}); a JSON, JSONL, CSV or Parquet file is expected; unpack it first")
    if head.startswith(b"ARROW1"):
        raise DataError(
            f"{path}: the file is Arrow's own format; JSON, JSONL, CSV or Parquet is expected; write it as Parquet, with to_parquet"
        )
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head[:4]:
        raise DataError(f"{path}:1:1: the file is UTF-16 or UTF-32; {CURE}")


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file, as they are read; a byte-order mark at its beginning is left out.

    By line feeds alone: str.splitlines would cut at U+2028 and U+0085, which may stand inside a JSON text.
    """
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            line = raw.removeprefix(BOM) if number == 1 else raw
            line = line.removesuffix(b"\n")
            try:
                yield Line(number, line.decode(), len(raw))
            except UnicodeDecodeError as error:
                yield Line(number, "", len(raw), _not_utf8(path, number, line, error.start))


def read_text(path: Path) -> str:
    """The whole file; raises DataError with every line that is not UTF-8."""
    content = path.read_bytes().removeprefix(BOM)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise DataError([line.problem for line in read_lines(path) if line.problem]) from None


def _not_utf8(path: Path, number: int, line: bytes, start: int) -> str:
    column = len(line[:start].decode()) + 1
    return f"{path}:{number}:{column}: byte 0x{line[start]:02x} (byte {start + 1} of the line) is not UTF-8; {CURE}"
