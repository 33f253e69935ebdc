"""Reward functions as their files have them, read without running them: `stages/rewards/<name>.py` holds a function `<name>`.

A function declares what it wants to be given, by name, of GIVEN; whatever else it declares comes from `arguments` in the settings.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stages.core import layout
from stages.core.errors import SettingsError

LENGTH = "length"
NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
GIVEN = ("prompts", "completions", "token_ids", "ended", "columns")
"""What a function may declare: of each of the completions of a prompt, the prompt's text (or its messages), the completion's text, its
tokens without the end token, whether it ended or was truncated, and the further columns of the prompt's row."""


class Signature(NamedTuple):
    """What a function declares."""

    needed: tuple[str, ...]
    """Arguments without a default."""
    optional: tuple[str, ...]
    takes_any: bool
    """Whether it has `**arguments`."""


def names() -> list[str]:
    """The functions that there are."""
    return sorted(path.stem for path in layout.REWARDS.glob("*.py") if not path.stem.startswith("_"))


def not_there(source: str) -> str:
    """What is said of a reward source that is nothing."""
    there = ", ".join(names()) or "none"
    return (
        f'reward source "{source}" is neither the keyword length nor a file that exists, nor a function in {layout.REWARDS}/ ({there}); '
        f"name one of those, {layout.REWARD}, or an artifact under {layout.REWARD_ARTIFACTS}/"
    )


def none_taken(source: str, arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with arguments for what is no function of the user's."""
    what = LENGTH if source == LENGTH else "a reward model"
    return [f"{what} takes no arguments (found {', '.join(arguments)}); leave them out"] if arguments else []


def problems(name: str, arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with calling the function of this name, which is there, with these arguments of the settings."""
    path = layout.REWARDS / f"{name}.py"
    try:
        declared = signature(name, path)
    except SettingsError as error:
        return list(error.problems)
    own = [key for key in (*declared.needed, *declared.optional) if key not in GIVEN]
    takes = f"it takes {', '.join(own)}" if own else "it takes none"
    found = [f"{path}: the argument {key} is given by the pipeline; leave it out of arguments" for key in arguments if key in GIVEN]
    if not declared.takes_any:
        found += [f"{path}: {name} takes no argument {key}; {takes}" for key in arguments if key not in (*own, *GIVEN)]
    missing = [key for key in declared.needed if key not in (*GIVEN, *arguments)]
    return found + [f"{path}: {name} needs the argument {key}; state it under arguments" for key in missing]


def signature(name: str, path: Path) -> Signature:
    """What the file's function of this name declares; raises SettingsError where it has none, or is not Python."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise SettingsError(f"{path}:{error.lineno}: this is not Python ({error.msg})") from error
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: cannot be read as Python ({error})") from error
    function = next((node for node in reversed(tree.body) if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if function is None:
        raise SettingsError(f"{path}: it has no function {name} at its top level; a reward function is named as its file is")
    if function.args.posonlyargs or function.args.vararg:
        raise SettingsError(f"{path}:{function.lineno}: {name} is called with named arguments alone; leave out / and *arguments")
    with_default = len(function.args.args) - len(function.args.defaults)
    plain = [argument.arg for argument in function.args.args]
    by_name = dict(zip((one.arg for one in function.args.kwonlyargs), function.args.kw_defaults, strict=True))
    needed = (*plain[:with_default], *(key for key, default in by_name.items() if default is None))
    optional = (*plain[with_default:], *(key for key, default in by_name.items() if default is not None))
    return Signature(needed, optional, function.args.kwarg is not None)
