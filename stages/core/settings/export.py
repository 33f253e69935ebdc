"""Section `export`: what is written for other software; nothing about it can be set yet."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Export:
    """What the export stage is set to."""
