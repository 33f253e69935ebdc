"""Sweeps as a person starts them, over stages that compute nothing: what runs, what is shared, what is left, what is refused."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests import stubs
from tests.conftest import git

pytestmark = pytest.mark.slow


class Project(NamedTuple):
    """A project whose stages compute nothing, and the file that they note their runs in."""

    folder: Path
    runs: Path

    def sweep(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return stubs.run(self.folder, "stages.sweep", *arguments, LEASH_RUNS=str(self.runs))

    def start(self, *arguments: str, command: tuple[str, str] = ("-m", "stages.sweep")) -> subprocess.Popen[str]:
        """A sweep in a session of its own, not waited for; the shell that DVC runs a stage in may be one that stays its parent."""
        whole = [sys.executable, *command, *arguments]
        environment = {**os.environ, "LEASH_RUNS": str(self.runs), "SHELL": "/bin/sh"}
        return subprocess.Popen(whole, cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def ran(self) -> Counter[str]:
        """How often each stage has run since this was last asked."""
        names = self.runs.read_text().split() if self.runs.is_file() else []
        self.runs.unlink(missing_ok=True)
        return Counter(names)

    def dvc(self, *arguments: str) -> str:
        done = stubs.run(self.folder, "dvc", *arguments, LEASH_RUNS=str(self.runs))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def experiments(self) -> list[str]:
        return self.dvc("exp", "list", "--name-only").split()

    def left(self) -> list[str]:
        """What a sweep left behind beyond what Git ignores: changes, stashes, worktrees besides the workspace."""
        worktrees = git(self.folder, "worktree", "list").splitlines()[1:]
        return [*git(self.folder, "status", "--porcelain").splitlines(), *git(self.folder, "stash", "list").splitlines(), *worktrees]


@pytest.fixture
def project(stub_project: Path, tmp_path: Path) -> Project:
    """A clone of that project with a cache of its own."""
    git(tmp_path, "clone", "--quiet", str(stub_project), "project with a space")
    folder = tmp_path / "project with a space"
    for name, value in (("user.name", "test"), ("user.email", "test@localhost")):
        git(folder, "config", name, value)
    (folder / ".dvc/config.local").write_text(f"[cache]\n    dir = {tmp_path / 'cache'}\n")
    subprocess.run(["cp", "-r", stub_project / ".dvc/cache", tmp_path / "cache"], check=True)
    return Project(folder, tmp_path / "runs")


def alive(folder: Path) -> list[str]:
    """Command lines of processes that run in the folder or below it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if Path(str((entry / "cwd").readlink()).removesuffix(" (deleted)")).is_relative_to(folder):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def wait_for_process(folder: Path, module: str) -> int:
    """The number of the process that runs the module below the folder, once there is one."""
    found: list[int] = []

    def look() -> bool:
        for process in psutil.process_iter(["cmdline", "cwd"]):
            words, where = process.info["cmdline"] or [], process.info["cwd"]
            if words[-2:] == ["-m", module] and where and Path(where).is_relative_to(folder):
                found.append(process.pid)
        return bool(found)

    wait_for(look)
    return found[0]


def test_jobs_share_what_they_can_become_experiments_and_run_once(project: Project):
    arguments = ("-m", "reward.rank=2,4", "grpo.beta=0.1,0.2", "reward.epochs=1", "hydra.launcher.n_jobs=2")
    done = project.sweep(*arguments)
    assert done.returncode == 0, done.stderr
    assert project.ran() == {"reward": 2, "grpo": 4, "evaluate": 4, "export": 4}  # base and validate are the commit's
    names = project.experiments()
    assert len(names) == 4
    assert project.left() == []
    # the table: best first, with what the jobs changed and what holds for all
    assert "all jobs: reward.epochs=1" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r" *[0-3] ", line)]
    assert [row[1:4] for row in rows] == [["4", "0.2", "6"], ["4", "0.1", "5"], ["2", "0.2", "4"], ["2", "0.1", "3"]]
    assert {row[6] for row in rows} == set(names)
    # a log for each job and each repro that they shared, below the sweep's folder
    logs = {path.parent.name.partition("-")[0] for path in project.folder.glob("multirun/*/*/**/dvc.log")}
    assert logs == {"0", "1", "2", "3", "reward", "validate"}
    shared = "".join(path.read_text() for path in project.folder.glob("multirun/*/*/shared/*/dvc.log"))
    assert shared.count("Running stage 'reward'") == 2
    # what DVC makes of them
    table = json.loads(project.dvc("exp", "show", "--json"))
    assert set(names) <= {experiment["name"] for entry in table for experiment in (entry.get("experiments") or [])}
    changed = json.loads(project.dvc("exp", "diff", "HEAD", rows[0][6], "--json"))["params"]["params.yaml"]
    assert {key: pair["new"] for key, pair in changed.items()} == {"reward.rank": 4, "reward.epochs": 1, "grpo.beta": 0.2}
    # again, in another order: nothing runs
    again = project.sweep("-m", "grpo.beta=0.2,0.1", "reward.epochs=1", "reward.rank=4,2")
    assert again.returncode == 0
    assert project.ran() == {}
    assert again.stderr.count("ran before") == 4
    assert project.experiments() == names
    # taken over into the workspace: settings, reports and artifacts are the experiment's
    project.dvc("exp", "apply", rows[0][6])
    assert json.loads((project.folder / "reports/evaluate.json").read_bytes())["reward_gain"] == 6.0
    assert "rank" in (project.folder / "artifacts/reward/reward.json").read_text()
    project.dvc("repro", "--quiet")
    assert project.ran() == {}
    project.dvc("exp", "branch", rows[1][6], "second")
    assert "second" in git(project.folder, "branch", "--list", "second")


def test_recorded_overrides_come_first_and_a_swept_key_takes_a_recorded_ones_place(project: Project):
    for module in (("stages.compose", "grpo.beta=0.9", "reward.rank=3", "experiment=null"), ("dvc", "repro", "-q")):
        assert stubs.run(project.folder, *module, LEASH_RUNS=str(project.runs)).returncode == 0
    git(project.folder, "commit", "--quiet", "--all", "--message=recorded")
    project.ran()
    done = project.sweep("grpo.beta=0.1,0.9")
    assert done.returncode == 0, done.stderr
    assert project.ran() == {"grpo": 1, "evaluate": 1, "export": 1}  # 0.9 is the commit's own run
    recorded = [
        git(project.folder, "show", f"{ref}:conf/overrides.yaml")
        for ref in git(project.folder, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    ]
    lists = {tuple(re.findall(r"^- (.*)$", text, re.MULTILINE)) for text in recorded}
    assert lists == {("reward.rank=3", "experiment=null", "grpo.beta=0.1"), ("reward.rank=3", "experiment=null", "grpo.beta=0.9")}


def test_jobs_that_fail_are_named_with_their_logs_and_ranked_last_and_the_others_are_kept(project: Project):
    arguments = ("grpo.seed=13,1", "evaluate.seed=0,7", "sweep.direction=minimize", "hydra.launcher.n_jobs=2")
    done = project.sweep(*arguments)
    assert done.returncode == 1
    lines = done.stderr.splitlines()[-2:]
    for number, seed, line in ((0, 0, lines[0]), (1, 7, lines[1])):
        title = f"job {number}: grpo.seed=13 evaluate.seed={seed}"
        assert re.fullmatch(rf"{title}: grpo.seed: thirteen is refused; see multirun/\S+/\S+/\S+/dvc\.log", line)
        assert "exited with 1" in (project.folder / line.rpartition("see ")[2]).read_text()
    assert len(project.experiments()) == 2
    assert project.left() == []
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r" *[0-3] ", line)]
    assert [(row[0], row[-1]) for row in rows][2:] == [("0", "failed"), ("1", "failed")]
    assert [row[0] for row in rows][:2] == ["3", "2"]  # the last one's figure is null: nothing to be measured
    assert "job 2: grpo.seed=1 evaluate.seed=0: reward_gain null" in done.stderr
    project.ran()
    assert project.sweep(*arguments).returncode == 1
    assert set(project.ran()) == {"grpo"}  # of the jobs that fail again


@pytest.mark.parametrize("how", ["the sweep alone", "its process group", "interrupted"])
def test_a_sweep_that_is_killed_takes_its_jobs_with_it_and_run_again_runs_what_is_missing(project: Project, how: str):
    started = project.start("grpo.seed=1,60", "hydra.launcher.n_jobs=2")
    wait_for(lambda: project.runs.is_file() and project.runs.read_text().split().count("grpo") == 2)
    wait_for(lambda: git(project.folder, "for-each-ref", "refs/exps"))  # the first job is done, the second one's grpo runs
    if how == "the sweep alone":
        started.kill()
    else:
        os.killpg(started.pid, signal.SIGKILL if how == "its process group" else signal.SIGINT)
    _, said = started.communicate(timeout=30)
    wait_for(lambda: not alive(project.folder), seconds=10)
    if how == "interrupted":
        assert "sweep: interrupted" in said.splitlines()
        assert project.left() == []
    assert project.ran() == {"grpo": 2, "evaluate": 1, "export": 1}
    done = project.sweep("grpo.seed=1,2", "hydra.launcher.n_jobs=1")
    assert done.returncode == 0, done.stderr
    assert project.ran() == {"grpo": 1, "evaluate": 1, "export": 1}
    assert project.left() == []
    assert len(project.experiments()) == 2


WAITING = """
import runpy, sys, threading
from joblib.externals.loky import process_executor
threads = []
def shutdown(self, *arguments, **named):
    never = threading.Event()
    threads.append(threading.Thread(target=never.wait))
    threads[0].start()
    never.wait()
process_executor.ProcessPoolExecutor.shutdown = shutdown
runpy.run_module("stages.sweep", run_name="__main__", alter_sys=True)
"""
"""A sweep whose launcher, once broken off, waits for good, and so does a thread of it when the process exits."""


def test_an_interrupted_sweep_ends_where_its_launcher_does_not(project: Project):
    """loky's thread waits for the rest of a result whose writer was killed in the midst of it."""
    started = project.start("grpo.seed=60", "hydra.launcher.n_jobs=2", command=("-c", WAITING))
    wait_for(lambda: project.runs.is_file() and "grpo" in project.runs.read_text().split())
    os.killpg(started.pid, signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130
    assert said.splitlines()[-1] == "sweep: interrupted"
    assert "Traceback" not in said
    wait_for(lambda: not alive(project.folder), seconds=10)
    assert project.left() == []


def test_a_sweep_runs_the_last_commit_and_refuses_what_would_be_left_out_of_it(project: Project):
    for name in ("conf/new.yaml", "stages/new.py", "data/new.json"):
        (project.folder / name).write_text("{}")
        done = project.sweep("grpo.beta=0.1")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"{name}: a sweep's jobs run the last commit")
        (project.folder / name).unlink()
    with (project.folder / "dvc.yaml").open("a") as stream:
        stream.write("# a remark\n")
    assert project.sweep("grpo.beta=0.1").stderr.startswith("dvc.yaml: a sweep's jobs run the last commit")
    git(project.folder, "restore", "dvc.yaml")
    # a lock, reports and files elsewhere that differ do not matter
    for name in ("dvc.lock", "reports/evaluate.json", "README.md"):
        with (project.folder / name).open("a") as stream:
            stream.write("\n")
    assert project.sweep("grpo.beta=0.04").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["grpo.betta=1,2"], "grpo.betta is not a setting; did you mean grpo.beta?"),
        (["grpo.group=4,1"], "grpo.group: group-relative policy optimization requires a group of at least two completions"),
        (["runtime.threads=1,2"], "runtime.threads: no stage depends on runtime, so its values would all make one experiment"),
        (["sweep.metric=reward_gian"], 'sweep.metric: reports/evaluate.json has no figure "reward_gian"; did you mean reward_gain'),
        (["grpo.beta=interval(0,1)"], "the sweep cannot be composed: an interval is searched and not run through"),
        (["reward=glob(z*)"], "reward=glob(z*): expected KEY=VALUES in Hydra's grammar: no file in conf/reward/ matches"),
        (["hydra/launcher=nope"], "the sweep cannot be composed: In 'hydra/config': Could not find 'hydra/launcher/nope'"),
        (["hydra.launcher.n_job=2"], "the sweep cannot be composed: Could not override 'hydra.launcher.n_job'"),
        (["--nope"], "--nope: neither an option of Hydra's nor KEY=VALUES"),
        (["--run"], "--run: a sweep always runs as a multirun"),
    ],
)
def test_what_no_job_could_run_is_refused_before_any_starts(stub_project: Path, arguments: list[str], line: str):
    done = stubs.run(stub_project, "stages.sweep", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(line), done.stderr
    assert "Traceback" not in done.stderr
    assert "runs as sweep-" not in done.stderr


def test_optuna_searches_with_the_figure_that_a_job_returns(project: Project):
    arguments = ("hydra/sweeper=search", "hydra.sweeper.n_trials=3", "grpo.beta=interval(0.1,0.5)", "hydra.launcher.n_jobs=2")
    done = project.sweep(*arguments)
    assert done.returncode == 0, done.stderr
    assert len(project.experiments()) == 3
    found = (next(project.folder.glob("multirun/*/*/optimization_results.yaml"))).read_text()
    best = float(re.search(r"best_value: (.*)", found)[1])
    betas = [
        json.loads(git(project.folder, "show", f"{ref}:reports/evaluate.json"))["reward_gain"]
        for ref in git(project.folder, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    ]
    assert best == max(betas)
    project.ran()
    assert project.sweep(*arguments).returncode == 0
    assert project.ran() == {}  # the same seed proposes the same settings


def test_submitits_executor_on_one_machine_runs_the_jobs(project: Project):
    done = project.sweep("hydra/launcher=submitit_local", "grpo.beta=0.1,0.2")
    assert done.returncode == 0, done.stderr
    assert project.ran() == {"grpo": 2, "evaluate": 2, "export": 2}
    assert [line.split()[0] for line in done.stdout.splitlines() if re.match(r" *[01] ", line)] == ["1", "0"]
    assert project.left() == []


def test_what_the_cache_did_not_keep_fails_the_job(project: Project, tmp_path: Path):
    """DVC itself ends well where its cache could not be written to; here the reward model is lost from it before the job ends."""
    with (project.folder / "stages/export.py").open("a") as stream:
        stream.write("for path in Path(os.environ['LEASH_CACHE']).glob('files/md5/*/*'):\n")
        stream.write("    path.unlink() if path.read_bytes().endswith(b'\"seed\": 7}') else None\n")
    git(project.folder, "commit", "--quiet", "--all", "--message=a cache that loses something")
    cache = {"LEASH_RUNS": str(project.runs), "LEASH_CACHE": str(tmp_path / "cache")}
    done = stubs.run(project.folder, "stages.sweep", "reward.seed=7", **cache)
    assert done.returncode == 1
    assert "its stages ran, but DVC did not keep all of their outputs" in done.stderr.splitlines()[-1]
    assert project.experiments() == []
    assert project.left() == []


def test_a_project_in_a_folder_of_a_larger_repository_is_swept_too(stub_project: Path, tmp_path: Path):
    outer = tmp_path / "outer"
    git(tmp_path, "init", "--quiet", "outer")
    for name, value in (("user.name", "test"), ("user.email", "test@localhost")):
        git(outer, "config", name, value)
    inner = outer / "projects/leash"
    inner.parent.mkdir()
    git(tmp_path, "clone", "--quiet", str(stub_project), str(inner))
    subprocess.run(["rm", "-rf", inner / ".git"], check=True)
    (outer / "else.txt").write_text("")
    git(outer, "add", "--all")
    git(outer, "commit", "--quiet", "--message=start")
    project = Project(inner, tmp_path / "runs")
    done = project.sweep("grpo.beta=0.1")
    assert done.returncode == 0, done.stderr
    ref = git(outer, "for-each-ref", "--format=%(refname)", "refs/exps").strip()
    assert json.loads(git(outer, "show", f"{ref}:projects/leash/reports/evaluate.json"))["reward_gain"] == 9.0
    (outer / "else.txt").write_text("changed")
    assert [line.split()[-1] for line in project.left()] == ["else.txt"]  # which is no part of the project
    assert project.sweep("grpo.beta=0.1").returncode == 0


def test_edits_and_commits_while_a_sweep_runs_are_not_its_concern(project: Project):
    """A job takes settings and code of the commit that the sweep started from, whatever the workspace has by then."""
    start = git(project.folder, "rev-parse", "HEAD").strip()
    started = project.start("reward.rank=2,4", "hydra/launcher=basic")
    wait_for(lambda: project.runs.is_file() and "grpo" in project.runs.read_text())
    settings = project.folder / "conf/grpo/default.yaml"
    settings.write_text(settings.read_text().replace("beta: 0.04", "beta: 0.5"))
    git(project.folder, "commit", "--quiet", "--all", "--message=meanwhile")
    _, said = started.communicate(timeout=120)
    assert started.returncode == 0, said
    refs = git(project.folder, "for-each-ref", "--format=%(refname)", f"refs/exps/{start[:2]}/{start[2:]}").split()
    gains = {json.loads(git(project.folder, "show", f"{ref}:reports/evaluate.json"))["reward_gain"] for ref in refs}
    assert gains == {2.4, 4.4}
    assert project.sweep("reward.rank=2,4", "hydra/launcher=basic").returncode == 0
    assert len(git(project.folder, "for-each-ref", "--format=%(refname)", "refs/exps").split()) == 4


def test_data_that_dvc_tracks_is_the_commits(project: Project):
    """Git ignores it, so only DVC can tell that it was edited; a job's checkout gets it from the cache."""
    git(project.folder, "rm", "--quiet", "--cached", "data/pairs.json")
    project.dvc("add", "data/pairs.json")
    git(project.folder, "add", "--all")
    git(project.folder, "commit", "--quiet", "--message=data under DVC")
    assert project.sweep("grpo.beta=0.04").returncode == 0
    with (project.folder / "data/pairs.json").open("a") as stream:
        stream.write("\n")
    done = project.sweep("grpo.beta=0.04")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("data/pairs.json: a sweep's jobs run the last commit")


def test_a_launchers_process_that_is_killed_is_one_line_and_what_has_ended_is_shown(project: Project):
    started = project.start("grpo.seed=1,60", "hydra.launcher.n_jobs=2")
    wait_for(lambda: git(project.folder, "for-each-ref", "refs/exps"))
    stage = wait_for_process(project.folder, "stages.grpo")
    worker = next(process for process in psutil.Process(stage).parents() if "loky" in " ".join(process.cmdline()))
    worker.kill()
    _, said = started.communicate(timeout=60)
    assert started.returncode == 1
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("sweep: a process that ran jobs was killed, as when memory runs out")
    wait_for(lambda: not alive(project.folder), seconds=10)
    assert project.left() == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["hydra.launcher.n_jobs=0"], "the sweep cannot be composed: n_jobs == 0"),
        (["hydra.launcher.n_jobs=abc"], "the sweep cannot be composed: Error merging override hydra.launcher.n_jobs=abc: Value 'abc'"),
    ],
)
def test_a_launchers_setting_that_makes_no_sense_is_one_line(stub_project: Path, arguments: list[str], line: str):
    done = stubs.run(stub_project, "stages.sweep", "grpo.beta=0.1,0.2", *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(line), done.stderr


def test_a_mistake_of_a_jobs_own_is_not_said_to_be_one_of_the_settings(project: Project):
    path = project.folder / "stages/sweeps/job.py"
    head = "def _run(job: Job, conf: Path) -> float | None:\n"
    path.write_text(path.read_text().replace(head, f'{head}    raise ValueError("a slip")\n'))
    git(project.folder, "commit", "--quiet", "--all", "--message=a slip")
    done = project.sweep("grpo.beta=0.1", "hydra/launcher=basic")
    assert done.returncode == 1
    assert "cannot be composed" not in done.stderr
    assert "job 0: grpo.beta=0.1: ValueError: a slip" in done.stderr


def test_a_job_of_before_whose_artifacts_are_gone_from_the_cache_says_so(project: Project, tmp_path: Path):
    assert project.sweep("grpo.beta=0.1").returncode == 0
    assert "not all of its artifacts" not in project.sweep("grpo.beta=0.1").stderr
    shutil.rmtree(tmp_path / "cache")
    done = project.sweep("grpo.beta=0.1")
    assert re.search(
        r"ran before; not all of its artifacts are in the cache: dvc pull, or dvc exp remove (sweep-\w+) and this sweep", done.stderr
    )
    project.ran()
    project.dvc("exp", "remove", project.experiments()[0])
    assert project.sweep("grpo.beta=0.1", "reward.rank=2,4", "hydra.launcher.n_jobs=2").returncode == 0
    assert project.ran() == {"base": 1, "reward": 2, "grpo": 2, "evaluate": 2, "export": 2}
