"""The libraries whose versions can change a number."""

import importlib.metadata
import platform

NAMES = ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """Those installed, and Python's own, by name."""
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in NAMES}}
