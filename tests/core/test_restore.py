import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stages.core import restore

PIPELINE = """
stages:
  compose:
    cmd: python -m stages.compose
    outs:
    - params.yaml: {cache: false, persist: true}
  grpo:
    cmd: python grpo.py
    deps: [setting]
    outs: [artifacts/grpo]
    metrics:
    - reports/grpo.json: {cache: false}
    plots:
    - reports/plots/grpo.csv: {cache: false, x: step}
"""
LOCK = """
schema: '2.0'
stages:
  compose: {cmd: x, outs: [{path: params.yaml}]}
  grpo:
    cmd: x
    outs:
    - {path: artifacts/grpo, md5: 0.dir}
    # the digest of the text 1
    - {path: reports/grpo.json, md5: c4ca4238a0b923820dcc509a6f75849b}
    - {path: reports/plots/grpo.csv, md5: c4ca4238a0b923820dcc509a6f75849b}
"""
AGAIN = ": set back what changed and run dvc repro, which has it in its cache"
START = "dvc.yaml: DVC removed what grpo had written before"


def git(*arguments):
    subprocess.run(["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    (tmp_path / "dvc.lock").write_text(LOCK)
    (tmp_path / "reports" / "plots").mkdir(parents=True)
    return tmp_path


def commit(project, *paths):
    for path in paths:
        (project / path).write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "reports")


def test_cached_outputs_come_from_dvc_and_committed_reports_from_git(project):
    commit(project, "reports/grpo.json", "reports/plots/grpo.csv")
    assert restore.advice("grpo") == [
        f"{START}; to bring it back: dvc checkout artifacts/grpo && git restore reports/grpo.json reports/plots/grpo.csv"
    ]


def test_reports_that_were_never_committed_are_said_to_be_nowhere(project):
    commit(project, "reports/grpo.json")
    assert restore.advice("grpo") == [
        f"{START}; to bring it back: dvc checkout artifacts/grpo && git restore reports/grpo.json; "
        f"not in Git as that run wrote it: reports/plots/grpo.csv{AGAIN}"
    ]


def test_a_report_that_was_committed_from_another_run_is_not_offered(project):
    commit(project, "reports/grpo.json", "reports/plots/grpo.csv")
    (project / "reports/grpo.json").write_text("of an earlier run")
    git("commit", "-q", "-a", "-m", "another")
    assert restore.advice("grpo") == [
        f"{START}; to bring it back: dvc checkout artifacts/grpo && git restore reports/plots/grpo.csv; "
        f"not in Git as that run wrote it: reports/grpo.json{AGAIN}"
    ]


def test_a_project_inside_a_larger_repository_is_asked_for_its_own_paths(project, monkeypatch):
    commit(project, "reports/grpo.json")
    inner = project / "inner"
    (inner / "reports" / "plots").mkdir(parents=True)
    (inner / "dvc.yaml").write_text(PIPELINE)
    (inner / "dvc.lock").write_text(LOCK)
    monkeypatch.chdir(inner)
    assert "not in Git as that run wrote it: reports/grpo.json" in restore.advice("grpo")[0]


def test_a_stage_that_was_never_run_has_nothing_to_bring_back(project):
    (project / "dvc.lock").unlink()
    assert restore.advice("grpo") == []


def test_outputs_that_dvc_leaves_where_they_are_are_not_told_of(project):
    assert restore.advice("compose") == []


@pytest.mark.parametrize("content", ["", "a: [", "stages: 3", "stages: {grpo: 3}"])
def test_a_pipeline_that_cannot_be_read_gives_no_advice(project, content):
    (project / "dvc.yaml").write_text(content)
    (project / "dvc.lock").unlink()
    assert restore.advice("grpo") == []


@pytest.mark.slow
def test_the_commands_that_are_named_bring_back_what_dvc_removed(project):
    (project / "dvc.lock").unlink()
    (project / "grpo.py").write_text(
        "import os, sys\nfrom pathlib import Path\nfrom stages.core import restore\n"
        "if Path('setting').read_text() == 'bad': sys.exit('\\n'.join(restore.advice('grpo')))\n"
        "[(Path(p).parent.mkdir(parents=True, exist_ok=True), Path(p).write_text('1'))"
        " for p in ('artifacts/grpo', 'reports/grpo.json', 'reports/plots/grpo.csv')]\n"
    )
    (project / "dvc.yaml").write_text(
        PIPELINE.replace("cmd: python grpo.py", f"cmd: {json.dumps(f'{shlex.quote(sys.executable)} grpo.py')}")
    )
    pipeline = (project / "dvc.yaml").read_text()
    (project / "dvc.yaml").write_text(pipeline.replace(pipeline[pipeline.index("  compose:") : pipeline.index("  grpo:")], ""))
    (project / "setting").write_text("good")
    dvc = [sys.executable, "-m", "dvc"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for command in (["init", "-q"], ["repro", "-q"]):
        subprocess.run([*dvc, *command], check=True, env=env, capture_output=True)
    git("add", ".")
    git("commit", "-q", "-m", "run")
    (project / "setting").write_text("bad")
    failed = subprocess.run([*dvc, "repro"], check=False, env=env, capture_output=True, text=True)
    assert failed.returncode != 0
    line = next(line for line in failed.stderr.splitlines() if line.startswith(START))
    made = [project / path for path in ("artifacts/grpo", "reports/grpo.json", "reports/plots/grpo.csv")]
    assert not any(path.exists() for path in made)
    for command in line.partition("to bring it back: ")[2].split(" && "):
        words = shlex.split(command)
        subprocess.run([*dvc, *words[1:]] if words[0] == "dvc" else words, check=True, env=env, capture_output=True)
    assert all(path.read_text() == "1" for path in made)
