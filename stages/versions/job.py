"""One job of a sweep: the stages run in a checkout of the commit with the job's settings, and become an experiment of DVC's.

What other jobs share is computed once, by the first that comes to it, while the others wait; what any job has computed is
taken from the cache. A job whose experiment is there already runs nothing.
"""

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from stages.core import layout
from stages.core.atomic import write_bytes
from stages.core.composition import overrides, params_yaml, tree
from stages.core.errors import LeashError
from stages.core.locks import held
from stages.core.progress import say
from stages.core.settings.sections import KEYS, SECTIONS
from stages.versions import launch, pipeline, processes, reproduce, results, workspace
from stages.versions.git import git, git_bytes
from stages.versions.reproduce import Step

LOG = "dvc.log"
_SHARED = "shared"


class JobError(LeashError):
    """A job that failed: its dvc.log, which the line names, says why."""


def run(config: DictConfig) -> float | None:
    """Runs the job that Hydra composed, and returns its figure, which is None where the report has none. Raises LeashError."""
    processes.end_with_sweep()
    hydra = HydraConfig.get()
    job = Job(
        number=hydra.job.num,
        folder=Path(hydra.runtime.output_dir),
        texts=[launch.as_recorded(text) for text in hydra.overrides.task if not overrides.key_of(text).startswith("sweep.")],
        metric=config.sweep.metric,
        sweep_folder=Path(hydra.runtime.output_dir).parent,
    )
    return job.run()


class Job:
    """A job: its settings, where it runs, and what it is called."""

    def __init__(self, number: int, folder: Path, texts: Sequence[str], metric: str, sweep_folder: Path) -> None:
        """`texts` are the overrides in force, the recorded ones first; `folder` takes its log, `sweep_folder` those of what jobs share."""
        recorded = overrides.recorded(layout.OVERRIDES)
        self.number, self.folder, self.metric, self.shared_logs = number, folder, metric, sweep_folder / _SHARED
        self.active = overrides.parse(texts)
        self.texts = [override.text for override in self.active.overrides]
        self.own = [text for text in self.texts if text not in recorded]
        self.title = f"job {number}: {' '.join(self.own) or 'as recorded'}"
        self.commit = git("rev-parse", "HEAD")

    def run(self) -> float | None:
        """Runs what is missing of it, and returns its figure; what becomes of it is written into its folder, also where it fails."""
        started = time.monotonic()
        try:
            values = tree.composed(layout.CONF, self.texts, self.active.problems)
            name = experiment_name(values)
            again = self._recorded(name)
            if not again:
                with held(workspace.job_lock(name), lambda: say(f"{self.title}: waits for {name}, which another sweep runs")):
                    again = self._recorded(name)
                    if not again:
                        say(f"{self.title}: runs as {name}")
                        self._reproduce(name, values)
            figure = results.figure(self._report(name), self.metric)
        except LeashError as error:
            results.write(self.folder, results.Outcome(self.number, self.own, results.FAILED, problem="; ".join(error.lines())))
            raise
        seconds = time.monotonic() - started
        outcome = results.Outcome(self.number, self.own, results.REUSED if again else results.RAN, name, *figure, seconds=seconds)
        results.write(self.folder, outcome)
        say(f"{self.title}: {results.shown(self.metric, outcome)} ({'ran before' if again else f'{seconds:.1f} s'}, {name})")
        return outcome.figure

    def _recorded(self, name: str) -> bool:
        return bool(git("rev-parse", "--quiet", "--verify", workspace.reference(self.commit, name), check=False))

    def _reproduce(self, name: str, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Runs the stages in a checkout of their own and records what they made; raises JobError with what the log ends in."""
        site = workspace.JOBS / f"{name}.site"
        with workspace.checked_out(name, self.commit) as checkout:
            write_bytes(checkout.project / layout.OVERRIDES, overrides.render(self.texts))
            steps = self._steps(values)
            command = [sys.executable, "-m", reproduce.__name__, reproduce.encode(steps)]
            try:
                code = processes.run_in_group(command, checkout.project, _environment(site))
            finally:
                shutil.rmtree(site, ignore_errors=True)
            if code:
                raise self._failed(code, steps)
            workspace.record(checkout, self.commit, name, f"sweep: {' '.join(self.own) or 'as recorded'}")

    def _steps(self, values: Mapping[str, Mapping[str, Any]]) -> list[Step]:
        """What DVC is to do: link what the commit's lock names and the cache has, run what jobs share, run all, say what was kept.

        Without the first, DVC would bring each stage's outputs back by itself, and write its lock anew for each: half a second apiece.
        """
        log = str((self.folder / LOG).resolve())
        steps = [Step(["checkout", "--allow-missing"], log, {}, self.title)]
        for run in pipeline.shared(pipeline.read(), sections(self.own)):
            keys = {stage.name: pipeline.key(stage, self.commit, values) for stage in run}
            locks = {stage: str((layout.SWEEP_STATE / "stages" / f"{stage}-{key}.lock").resolve()) for stage, key in keys.items()}
            shared_log = self.shared_logs / f"{run[-1].name}-{keys[run[-1].name]}" / LOG
            steps.append(Step(["repro", *locks], str(shared_log.resolve()), locks, self.title))
        return [*steps, Step(["repro"], log, {}, self.title), Step(["status", "--quiet"], log, {}, self.title)]

    def _failed(self, code: int, steps: Sequence[Step]) -> JobError:
        number = code - reproduce.STEP_FAILED
        if not 0 <= number < len(steps):
            how = f"was killed by signal {-code}" if code < 0 else f"broke off with exit code {code}"
            return JobError(f"{self.title}: DVC {how}; {_shown(self.folder / LOG)} has what it had said")
        step = steps[number]
        if step.arguments[0] == "status":
            reason = "its stages ran, but DVC did not keep all of their outputs, as when the disk is full: make room, run the sweep again"
        else:
            reason = results.reason(Path(step.log).read_text("utf-8", "replace"))
        return JobError(f"{self.title}: {reason}; see {_shown(Path(step.log))}")

    def _report(self, name: str) -> Mapping[str, Any]:
        """The report that holds the metric, as the experiment has it."""
        path = layout.report(results.report_of(self.metric))
        content = git_bytes("show", f"{workspace.reference(self.commit, name)}:./{path}")
        if content is None:
            raise JobError(f"{self.title}: {name} has no {path}; remove it with dvc exp remove {name} and run the sweep again")
        report: Mapping[str, Any] = json.loads(content)
        return report


def experiment_name(values: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of the experiment with these settings: the same settings give the same one, however they were put."""
    counted = {section: of_section for section, of_section in values.items() if section not in results.NOT_OF_A_RUN}
    flat = sorted(params_yaml.flatten(counted).items())
    return f"sweep-{hashlib.sha256(json.dumps(flat).encode()).hexdigest()[:10]}"


def sections(texts: Sequence[str]) -> set[str]:
    """The sections that these overrides may move; an experiment may move all of them."""
    moved: set[str] = set()
    for text in texts:
        key = overrides.key_of(text)
        section = key.partition(".")[0] if key in KEYS else key
        moved |= {section} if section in SECTIONS else set(SECTIONS)
    return moved - set(results.NOT_OF_A_RUN)


def _environment(site: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "GIT_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    ours = {"PATH": path, "DVC_ROOT": str(Path.cwd()), "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(site.resolve())}
    return {**inherited, **ours}


def _shown(path: Path) -> str:
    return os.path.relpath(path)
