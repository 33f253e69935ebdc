"""What the modules under stages/ import from each other, read from their source; run as a module, it writes dvc.yaml's deps anew."""

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "stages"
REWARDS = f"{PACKAGE}/rewards"
"""Loaded by name, so a stage depends on the whole folder."""


@dataclass(frozen=True)
class Import:
    """One import of a module, as its source has it."""

    module: str
    """Dotted name, of a module of ours down to the module itself."""
    line: int
    at_top: bool
    """Whether it runs when the importing module is loaded, rather than inside a function."""


def modules(root: Path = ROOT) -> list[str]:
    """The paths of the package's modules from the root, sorted; without `__init__` files, which hold a docstring only."""
    return sorted(path.relative_to(root).as_posix() for path in (root / PACKAGE).rglob("*.py") if path.name != "__init__.py")


@functools.cache
def imports(path: str, root: Path = ROOT) -> list[Import]:
    """Every import in a module, those inside functions included."""
    tree = ast.parse((root / path).read_text(encoding="utf-8"), path)
    return [
        Import(module, node.lineno, at_top)
        for node, at_top in _statements(tree, at_top=True)
        for module in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else _sources(node, path, root))
    ]


def local(module: str, root: Path = ROOT) -> str | None:
    """The path of a module of ours from its dotted name; None for others, and for a folder."""
    path = module.replace(".", "/") + ".py"
    return path if module.startswith(f"{PACKAGE}.") and (root / path).is_file() else None


def closure(start: Iterable[str], root: Path = ROOT, top_only: bool = False) -> set[str]:
    """The modules given and all of ours that they import, over any number of steps."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            reached = (local(entry.module, root) for entry in imports(path, root) if entry.at_top or not top_only)
            waiting += [module for module in reached if module]
    return found


def stage_modules(stage: str, folders: Iterable[str], root: Path = ROOT) -> list[str]:
    """The modules that a stage runs, sorted, less those in folders that it depends on as a whole."""
    whole = tuple(f"{folder}/" for folder in folders)
    start = [f"{PACKAGE}/{stage}.py", *(path for path in modules(root) if path.startswith(whole))]
    return sorted(path for path in closure(start, root) if not path.startswith(whole))


def rewritten(text: str, root: Path = ROOT) -> str:
    """dvc.yaml's text with every stage's dependencies on modules as its imports have them; all else as it is."""

    def stage(match: re.Match[str]) -> str:
        listed = re.findall(r"^      - (.+)\n", match["deps"], re.MULTILINE)
        others = [path for path in listed if not re.fullmatch(rf"{PACKAGE}/.*\.py", path)]
        files = stage_modules(match["name"], [path for path in others if path.startswith(f"{PACKAGE}/")], root)
        return match["head"] + "".join(f"      - {path}\n" for path in sorted([*others, *files]))

    return re.sub(r"(?P<head>^  (?P<name>\w+):\n(?:    .*\n)*?    deps:\n)(?P<deps>(?:      - .+\n)+)", stage, text, flags=re.MULTILINE)


def _statements(node: ast.AST, at_top: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_top
        else:
            yield from _statements(child, at_top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def _sources(node: ast.ImportFrom, path: str, root: Path) -> list[str]:
    """The modules that `from source import names` reads: a name that is a module itself, else the source."""
    above = list(Path(path).with_suffix("").parts)[: -node.level] if node.level else []
    source = ".".join([*above, *([node.module] if node.module else [])])
    return sorted({f"{source}.{alias.name}" if local(f"{source}.{alias.name}", root) else source for alias in node.names})


if __name__ == "__main__":
    file = ROOT / "dvc.yaml"
    before = file.read_text(encoding="utf-8")
    after = rewritten(before)
    file.write_text(after, encoding="utf-8")
    sys.stdout.write(
        "dvc.yaml: dependencies written anew\n" if after != before else "dvc.yaml: dependencies are as the imports have them\n"
    )
