"""The import rule, and that dvc.yaml declares exactly what each stage runs and reads."""

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import imports

LAYERS = ("core", "files", "model", "learning")
"""The folders under stages/; a module imports from its own or from one further left, an entry from any."""

BESIDE = {
    "rewards": ("core", "rewards"),
    "pages": ("core", "pages"),
    "versions": ("core", "files", "pages", "versions"),
    "sweeps": ("core", "versions", "sweeps"),
}
"""Folders that no other imports, entries apart, and what they may import; rewards are loaded by name."""

HEAVY = {"accelerate", "dvc", "gguf", "peft", "pyarrow", "safetensors", "tokenizers", "torch", "transformers"}
"""Libraries that take a second or a good part of it to import: the one reason for an import inside a function."""

PIPELINE: dict[str, dict[str, Any]] = yaml.safe_load((imports.ROOT / "dvc.yaml").read_text(encoding="utf-8"))
STAGES = PIPELINE["stages"]
MODULES = imports.modules()


def folder(path: str) -> str:
    """The folder under stages/ that a module lies in, however deep; empty for an entry."""
    return path.split("/")[1] if path.count("/") > 1 else ""


def may_import(importer: str, imported: str) -> bool:
    """Whether the import rule allows it, by the folders of the two modules."""
    if importer in BESIDE:
        return imported in BESIDE[importer]
    if importer == "":
        return imported in (*LAYERS, "pages", "versions", "sweeps")
    return imported in LAYERS and LAYERS.index(imported) <= LAYERS.index(importer)


def written(dependencies: list[str]) -> str:
    """The lines as dvc.yaml has them, to be pasted."""
    return "".join(f"\n      - {path}" for path in dependencies)


def test_the_package_has_the_folders_of_the_import_rule_alone():
    assert {folder(path) for path in MODULES} <= {"", *BESIDE, *LAYERS}


@pytest.mark.parametrize("path", MODULES)
def test_imports_run_from_entry_to_learning_to_model_to_files_to_core(path: str):
    local = {entry: imports.local(entry.module) for entry in imports.imports(path)}
    wrong = [f"{path}:{entry.line}: imports {to}" for entry, to in local.items() if to and not may_import(folder(path), folder(to))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", MODULES)
def test_an_import_of_ours_names_a_module(path: str):
    """A folder holds nothing to import, and a module that is not there would leave the dependencies short."""
    own = [entry for entry in imports.imports(path) if entry.module.split(".")[0] == imports.PACKAGE]
    wrong = [f"{path}:{entry.line}: {entry.module} is no module" for entry in own if not imports.local(entry.module)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", MODULES)
def test_an_import_inside_a_function_is_of_what_takes_seconds(path: str):
    def heavy(module: str) -> bool:
        own = imports.local(module)
        reached = [entry for source in imports.closure([own], top_only=True) for entry in imports.imports(source)] if own else []
        return any(name.split(".")[0] in HEAVY for name in (module, *(entry.module for entry in reached if entry.at_top)))

    inside = [entry for entry in imports.imports(path) if not entry.at_top]
    wrong = [f"{path}:{entry.line}: {entry.module} can be imported at the top" for entry in inside if not heavy(entry.module)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", sorted((imports.ROOT / imports.PACKAGE).rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_a_package_file_holds_a_docstring_alone(path: Path):
    body = ast.parse(path.read_text(encoding="utf-8")).body
    assert len(body) == 1
    assert ast.get_docstring(ast.Module(body, []))


def test_no_two_modules_import_each_other():
    for path in MODULES:
        reached = imports.closure(own for entry in imports.imports(path) if (own := imports.local(entry.module)))
        assert path not in reached, f"{path} imports itself, over {sorted(reached)}"


def test_the_pipeline_is_the_seven_stages_each_run_from_the_root():
    assert {name: stage["cmd"] for name, stage in STAGES.items()} == {
        name: f"exec python -m stages.{name}" for name in ("compose", "base", "validate", "reward", "grpo", "evaluate", "export")
    }


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_depends_on_exactly_the_modules_that_it_imports(name: str):
    listed = STAGES[name]["deps"]
    folders = [path for path in listed if path.startswith(f"{imports.PACKAGE}/") and not path.endswith(".py")]
    declared = [path for path in listed if path.startswith(f"{imports.PACKAGE}/") and path.endswith(".py")]
    imported = imports.stage_modules(name, folders)
    missing = [path for path in imported if path not in declared]
    superfluous = [path for path in declared if path not in imported]
    assert not missing, f"make deps mends it; stage {name} lacks:{written(missing)}"
    assert not superfluous, f"make deps mends it; stage {name} does not import:{written(superfluous)}"
    assert listed == sorted(set(listed)), f"make deps sorts the dependencies of stage {name}"


@pytest.mark.parametrize("name", STAGES)
def test_the_stages_that_score_depend_on_every_reward_function_and_artifact(name: str):
    scores = name in ("grpo", "evaluate")
    assert [path in STAGES[name]["deps"] for path in ("stages/rewards", "data/rewards", "data/adapters")] == [scores] * 3


@pytest.mark.parametrize("name", [name for name in STAGES if name != "compose"])
def test_a_stage_reads_the_sections_that_it_declares_and_runtime(name: str):
    tree = ast.parse((imports.ROOT / f"stages/{name}.py").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Params"]
    assert len(found) == 1, f"stages/{name}.py has no class Params"
    assert "dataclass(frozen=True)" in [ast.unparse(decorator) for decorator in found[0].decorator_list]
    read = {node.target.id for node in found[0].body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    declared = set(STAGES[name]["params"])
    assert read - {"runtime"} == declared
    assert "runtime" not in declared


def test_the_base_section_reruns_the_base_stage_alone():
    assert [name for name, stage in STAGES.items() if "base" in stage["params"]] == ["base"]


@pytest.mark.parametrize("name", [name for name in STAGES if name != "compose"])
def test_an_edit_to_a_sections_schema_reruns_only_the_stages_that_read_it(name: str):
    sections = {stage["params"][0] for stage in STAGES.values() if isinstance(stage["params"][0], str)}
    imported = {Path(path).stem for path in imports.stage_modules(name, []) if path.startswith("stages/core/settings/")}
    assert imported & sections == set(STAGES[name]["params"])


@pytest.mark.parametrize(("name", "needed"), [("compose", set()), ("validate", set()), ("export", {"safetensors"})])
def test_a_stage_that_computes_nothing_imports_no_torch(name: str, needed: set[str]):
    program = f"import sys, stages.{name}; print(sorted({HEAVY - needed!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=imports.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_the_dependencies_are_written_anew_from_the_imports(tmp_path: Path):
    (tmp_path / "stages/core").mkdir(parents=True)
    (tmp_path / "stages/rewards").mkdir()
    (tmp_path / "stages/one.py").write_text("def late():\n    from stages.core import deep\n")
    (tmp_path / "stages/core/deep.py").write_text("import stages.core.deeper, torch\n")
    (tmp_path / "stages/core/deeper.py").write_text("from .deep import name\n")
    (tmp_path / "stages/core/other.py").write_text("")
    (tmp_path / "stages/core/scored.py").write_text("")
    (tmp_path / "stages/rewards/mine.py").write_text("from stages.core.scored import name\n")
    before = """\
stages:
  one:
    cmd: python -m stages.one
    deps:
      - stages/core/other.py
      - data
      - stages/one.py
    params:
      - one
  two:
    deps:
      - stages/rewards
      - stages/two.py
"""
    (tmp_path / "stages/two.py").write_text("")
    after = imports.rewritten(before, tmp_path)
    stages = yaml.safe_load(after)["stages"]
    assert stages["one"]["deps"] == ["data", "stages/core/deep.py", "stages/core/deeper.py", "stages/one.py"]
    assert stages["two"]["deps"] == ["stages/core/scored.py", "stages/rewards", "stages/two.py"]
    assert stages["one"]["params"] == ["one"]
    assert imports.rewritten(after, tmp_path) == after


def test_every_import_of_a_module_is_seen_with_its_place(tmp_path: Path):
    (tmp_path / "stages").mkdir()
    source = "import torch\nif True:\n    import numpy.linalg as n\nclass A:\n    def f(self):\n        from peft import LoraConfig\n"
    (tmp_path / "stages/a.py").write_text(source)
    assert [dataclasses.astuple(entry) for entry in imports.imports("stages/a.py", tmp_path)] == [
        ("torch", 1, True),
        ("numpy.linalg", 3, True),
        ("peft", 6, False),
    ]
