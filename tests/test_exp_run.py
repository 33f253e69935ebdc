"""`dvc exp run -S` as a person types it: what it may set, what becomes of the overrides recorded before, and what it may not."""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, git

pytestmark = pytest.mark.slow

ONE = """dvc exp run -n warmer -S "conf/overrides.yaml:overrides=['grpo.beta=0.33']\""""
SEVERAL = """dvc exp run -S "conf/overrides.yaml:overrides=['grpo.beta=0.33','reward=large']\""""


class Project:
    """A clone of a project whose stages compute nothing, with the outputs of its run."""

    def __init__(self, source: Path, folder: Path) -> None:
        git(folder.parent, "clone", "--quiet", str(source), folder.name)
        self.folder = folder
        self.runs = folder.parent / "runs"
        for name, value in (("user.name", "test"), ("user.email", "test@localhost")):
            git(folder, "config", name, value)
        shutil.copytree(source / ".dvc/cache", folder / ".dvc/cache")
        shutil.copytree(source / "artifacts", folder / "artifacts")

    def shell(self, line: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """A line of a shell, with its exit code checked."""
        environment = {**os.environ, "LEASH_RUNS": str(self.runs)}
        done = subprocess.run(["bash", "-c", line], cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done

    def ran(self) -> Counter[str]:
        """How often each stage has run since this was last asked."""
        names = self.runs.read_text().split() if self.runs.is_file() else []
        self.runs.unlink(missing_ok=True)
        return Counter(names)

    def settings(self) -> dict:
        return yaml.safe_load((self.folder / "params.yaml").read_text())

    def overrides(self) -> str:
        return (self.folder / "conf/overrides.yaml").read_text()

    def changed(self) -> list[str]:
        return [line[3:] for line in git(self.folder, "status", "--porcelain").splitlines()]


@pytest.fixture
def project(stub_project: Path, tmp_path: Path) -> Project:
    return Project(stub_project, tmp_path / "project")


@pytest.mark.parametrize("command", [ONE, SEVERAL, "dvc exp run -S grpo.beta=0.33"])
def test_the_command_is_the_readmes(command: str):
    assert command in (ROOT / "README.md").read_text()


def test_an_override_runs_what_depends_on_it_and_leaves_an_experiment(project: Project):
    before = project.overrides()
    done = project.shell(ONE)
    assert re.findall(r"^Running stage '(\w+)'", done.stdout, re.MULTILINE) == ["compose", "grpo", "evaluate", "export"]
    assert project.ran() == {"grpo": 1, "evaluate": 1, "export": 1}
    assert project.settings()["grpo"]["beta"] == 0.33
    assert project.overrides() == before.replace("overrides: []\n", "overrides:\n- grpo.beta=0.33\n")  # with the comment above it
    # what DVC makes of it
    (commit,) = git(project.folder, "for-each-ref", "--format=%(objectname)", "refs/exps/*/*/warmer").split()
    assert "  beta: 0.33\n" in git(project.folder, "show", f"{commit}:params.yaml")
    shown = json.loads(project.shell("dvc exp show --json").stdout)
    (experiment,) = [each for entry in shown for each in entry.get("experiments") or []]
    assert experiment["name"] == "warmer"
    data = experiment["revs"][0]["data"]
    assert data["params"]["params.yaml"]["data"]["grpo"]["beta"] == 0.33
    assert data["params"]["conf/overrides.yaml"]["data"] == {"overrides": ["grpo.beta=0.33"]}
    # back to the commit, and to the experiment again, from the cache
    project.shell("git restore . && dvc checkout -q && dvc status -q")
    assert project.settings()["grpo"]["beta"] == 0.04
    project.shell("dvc exp apply warmer && dvc repro -q && dvc status -q")
    assert project.settings()["grpo"]["beta"] == 0.33
    assert '"beta": 0.33' in (project.folder / "artifacts/grpo/policy.json").read_text()
    assert project.ran() == {}


def test_several_overrides_and_a_choice_take_the_place_of_those_that_were_recorded(project: Project):
    project.shell("python -m stages.compose grpo.rank=4 && dvc repro -q && git commit -qam recorded")
    project.ran()
    project.shell(SEVERAL)
    assert project.ran() == {"reward": 1, "grpo": 1, "evaluate": 1, "export": 1}
    assert project.overrides().endswith("\noverrides:\n- grpo.beta=0.33\n- reward=large\n")
    settings = project.settings()
    assert (settings["grpo"]["beta"], settings["grpo"]["rank"], settings["reward"]["rank"]) == (0.33, 8, 32)


def test_without_the_inner_quotes_dvc_refuses_it_and_changes_nothing(project: Project):
    done = project.shell('dvc exp run -S "conf/overrides.yaml:overrides=[grpo.beta=0.33]"', code=255)
    assert "no viable alternative at input '[grpo.beta='" in done.stderr
    assert (project.changed(), project.ran()) == ([], {})


def test_an_override_that_cannot_be_composed_is_refused_before_any_stage_and_git_has_the_earlier_ones(project: Project):
    done = project.shell("""dvc exp run -S "conf/overrides.yaml:overrides=['grpo.betta=0.33']\"""", code=255)
    assert "grpo.betta is not a setting; did you mean grpo.beta?\n" in done.stderr
    assert (project.changed(), project.ran()) == (["conf/overrides.yaml"], {})
    project.shell("git restore conf/overrides.yaml && dvc status -q")


def test_setting_params_yaml_is_refused_with_the_commands_that_keep_and_discard_it(project: Project):
    done = project.shell("dvc exp run -n refused -S grpo.beta=0.33", code=255)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("params.yaml: ")]
    assert "edited after it was composed, by hand or by dvc exp run -S: grpo.beta (found 0.33, composed 0.04); " in line
    assert line.endswith(
        "; to keep this, run python -m stages.compose grpo.beta=0.33; to discard it, remove params.yaml and run python -m stages.compose"
    )
    assert re.findall(r"^Running stage '(\w+)'", done.stdout, re.MULTILINE) == ["compose"]
    assert (project.changed(), project.ran()) == (["params.yaml"], {})
    assert git(project.folder, "for-each-ref", "refs/exps/*/*/refused") == ""
    # discarded
    project.shell("cp params.yaml ../edited && rm params.yaml && python -m stages.compose")
    assert project.changed() == []
    # kept
    project.shell("mv ../edited params.yaml && python -m stages.compose grpo.beta=0.33 && dvc repro -q && dvc status -q")
    assert project.ran() == {"grpo": 1, "evaluate": 1, "export": 1}
    assert project.settings()["grpo"]["beta"] == 0.33
