"""One job of a sweep: the stages run in a checkout of the commit with the job's settings, and become an experiment of DVC's.

What other jobs share is computed once, by the first that comes to it, while the others wait; what any job has computed is
taken from the cache. A job whose experiment is there already runs nothing.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from stages.core import layout
from stages.core.atomic import write_bytes
from stages.core.composition import overrides, params_yaml, tree
from stages.core.errors import LeashError, SettingsError
from stages.core.locks import held
from stages.core.progress import say
from stages.core.settings.sections import KEYS, NOT_OF_A_STAGE, SECTIONS
from stages.sweeps import checkout, preflight, processes, results, shared_stages, steps, sweep
from stages.sweeps.results import FAILED, RAN, REUSED, Outcome
from stages.sweeps.steps import Plan, Step
from stages.sweeps.sweep import Sweep
from stages.versions import experiments
from stages.versions.git import git, git_bytes

LOG = "dvc.log"
SHARED = "shared"
"""The folder for the logs of stages that several jobs share, in that of the sweep."""

Values = Mapping[str, Mapping[str, Any]]


class JobError(LeashError):
    """A job that failed: its dvc.log, which the line names, says why."""


class Job(NamedTuple):
    """A job as Hydra starts it."""

    sweep: Sweep
    number: int
    folder: Path
    """For its log and its record."""
    shared_logs: Path
    texts: list[str]
    """The overrides in force, the recorded ones first."""
    own: list[str]
    """Those of them that make it this job."""
    metric: str

    @property
    def title(self) -> str:
        """How a line about it begins."""
        return f"job {self.number}: {' '.join(self.own) or 'as recorded'}"


def run(config: DictConfig) -> float | None:
    """Runs the job that Hydra composed, and returns its figure, which is None where the report has none. Raises LeashError.

    What becomes of it is written into its folder, also where it fails.
    """
    hydra = HydraConfig.get()
    os.chdir(hydra.runtime.cwd)  # paths count from the project's root, whatever hydra.job.chdir is
    started = sweep.of_this_job()
    processes.end_with(started)
    given = [preflight.as_recorded(text) for text in hydra.overrides.task]
    texts = [text for text in given if not overrides.key_of(text).startswith("sweep.")]
    own = [text.lstrip("+") for text in texts if overrides.key_of(text) in started.keys]
    folder = Path(hydra.runtime.output_dir)
    job = Job(started, hydra.job.num, folder, Path(hydra.sweep.dir).resolve() / SHARED, texts, own, config.sweep.metric)
    try:
        with checkout.settings_at(started.commit) as conf:
            recorded = overrides.recorded(conf / layout.OVERRIDES.name)
            of_sweep = [text for text in recorded if overrides.key_of(text).startswith("sweep.")]
            return _run(job._replace(texts=[*of_sweep, *texts]), conf)
    except BaseException as error:
        problem = "; ".join(error.lines()) if isinstance(error, LeashError) else f"{job.title}: {type(error).__name__}: {error}"
        results.write(folder, Outcome(started.name, job.number, own, FAILED, problem=problem))
        if isinstance(error, ValueError):
            raise RuntimeError(problem) from error  # a mistake of ours; a launcher's ValueError is about its settings
        raise


def experiment_name(values: Values, commit: str) -> str:
    """The name of the experiment of the commit with these settings: the same settings give the same one, however they were put."""
    counted = {section: of_section for section, of_section in values.items() if section not in NOT_OF_A_STAGE}
    flat = sorted(params_yaml.flatten(counted).items())
    return f"sweep-{hashlib.sha256(json.dumps([commit, flat]).encode()).hexdigest()[:10]}"


def sections(texts: Sequence[str]) -> set[str]:
    """The sections that these overrides may move; an experiment may move all of them."""
    moved: set[str] = set()
    for text in texts:
        key = overrides.key_of(text)
        section = key.partition(".")[0] if key in KEYS else key
        moved |= {section} if section in SECTIONS else set(SECTIONS)
    return moved - set(NOT_OF_A_STAGE)


def _run(job: Job, conf: Path) -> float | None:
    started = time.monotonic()
    active = overrides.parse(job.texts)
    values = tree.composed(conf, [override.text for override in active.overrides], active.problems)
    name = experiment_name(values, job.sweep.commit)
    again = bool(experiments.commit(job.sweep.commit, name))
    if not again:
        with held(checkout.job_lock(name), lambda: say(f"{job.title}: waits for {name}, which another job runs")):
            again = bool(experiments.commit(job.sweep.commit, name))
            if not again:
                say(f"{job.title}: runs as {name}")
                _reproduce(job, name, [override.text for override in active.overrides], values)
    figure = results.figure(_report(job, name), job.metric)
    seconds = time.monotonic() - started
    outcome = Outcome(job.sweep.name, job.number, job.own, REUSED if again else RAN, name, *figure, seconds=seconds)
    results.write(job.folder, outcome)
    took = ("ran before" + _lost(job, name) if again else f"{seconds:.1f} s") + f", {name}"
    say(f"{job.title}: {results.shown(job.metric, outcome)} ({took})")
    return outcome.figure


def _lost(job: Job, name: str) -> str:
    """What is said of an experiment whose artifacts the cache has no more, as after `dvc gc`."""
    lock = yaml.load(git("show", f"{experiments.reference(job.sweep.commit, name)}:./{layout.LOCK}"), yaml.CSafeLoader)
    kept = all(steps.is_kept(steps.digests(lock, stage), checkout.cache()) for stage in lock["stages"])
    return "" if kept else f"; not all of its artifacts are in the cache: dvc pull, or dvc exp remove {name} and this sweep, brings them"


def _reproduce(job: Job, name: str, texts: Sequence[str], values: Values) -> None:
    """Runs the stages in a checkout of their own and records what they made; raises JobError with what the log ends in."""
    with checkout.made(name, job.sweep.commit) as made:
        write_bytes(made.project / layout.OVERRIDES, overrides.render(texts))
        plan = Plan(job.title, os.getpid(), str(made.cache), _steps(job, made.project, values))
        command = [sys.executable, "-m", steps.__name__, steps.encode(plan)]
        code = processes.run_in_group(command, made.project, _environment(made.site))
        if code:
            raise _failed(job, code, plan.steps)
        checkout.record(made, job.sweep.commit, name, f"sweep: {' '.join(job.own) or 'as recorded'}")


def _steps(job: Job, project: Path, values: Values) -> list[Step]:
    """What DVC is to do: link what the commit's lock names and the cache has, run what jobs share, run all, say what was kept.

    Without the first, DVC would bring each stage's outputs back by itself, and write its lock anew for each: half a second apiece.
    """
    log = str(job.folder.resolve() / LOG)
    planned = [Step(["checkout", "--allow-missing"], log, {})]
    for run in shared_stages.shared(shared_stages.read(project / layout.PIPELINE), sections(job.own)):
        keys = {stage.name: shared_stages.key(stage, job.sweep.commit, values) for stage in run}
        locks = {stage: str((layout.SWEEP_STATE / "stages" / f"{stage}-{key}.lock").resolve()) for stage, key in keys.items()}
        shared_log = job.shared_logs / f"{run[-1].name}-{keys[run[-1].name]}" / LOG
        planned.append(Step(["repro", *locks], str(shared_log), locks))
    return [*planned, Step(["repro"], log, {}), Step(["status", "--quiet"], log, {})]


def _failed(job: Job, code: int, planned: Sequence[Step]) -> JobError:
    number = code - steps.STEP_FAILED
    if not 0 <= number < len(planned):
        how = f"was killed by signal {-code}" if code < 0 else f"broke off with exit code {code}"
        log = job.folder / LOG
        return JobError(f"{job.title}: DVC {how}; see {os.path.relpath(log)} for what it had said, and run the sweep again")
    step = planned[number]
    if step.arguments[0] == "status":
        reason = "its stages ran, but DVC did not keep all of their outputs, as when the disk is full: make room, run the sweep again"
    else:
        reason = results.reason(Path(step.log).read_text("utf-8", "replace"))
    return JobError(f"{job.title}: {reason}; see {os.path.relpath(step.log)}")


def _report(job: Job, name: str) -> Mapping[str, Any]:
    """The report that holds the metric, as the experiment has it."""
    path = layout.report(results.report_of(job.metric))
    content = git_bytes("show", f"{experiments.reference(job.sweep.commit, name)}:./{path}")
    try:
        report = json.loads(content or b"")
    except ValueError:
        report = None
    if not isinstance(report, dict):
        raise SettingsError(f"{job.title}: {path} of {name} is no report; dvc exp remove {name}, and run the sweep again")
    return report


def _environment(site: Path) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX"))
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    ours = {"PATH": path, "DVC_ROOT": str(Path.cwd()), "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(site)}
    return {**inherited, **ours}
