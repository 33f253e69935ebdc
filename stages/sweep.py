"""Many runs of the pipeline over chosen settings: a Hydra multirun, each of whose jobs becomes an experiment of DVC's.

usage    python -m stages.sweep -m KEY=VALUE,VALUE ... [hydra.launcher.n_jobs=N] [hydra/launcher=NAME] [hydra/sweeper=NAME]
         all combinations are run; recorded overrides hold for every job, unless the sweep names their key
reads    the last commit: jobs run it, each in a checkout of its own; DVC's cache is shared, so nothing is computed twice
writes   experiments (dvc exp show, diff, apply, branch), a table of the jobs on stdout, and logs below multirun/
refuses  changes to conf/, stages/, data/ or dvc.yaml that are not committed; settings of any job that compose would refuse
"""

import os
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from stages.core import layout, runner, stopping
from stages.core.composition import overrides
from stages.core.errors import LeashError
from stages.sweeps import checkout, job, preflight, results, sweep
from stages.sweeps.sweep import Sweep
from stages.versions.git import git

PATIENCE = 10.0
"""Seconds that the launcher of a sweep which was broken off has to end, and its jobs then to be gone."""


def main(arguments: Sequence[str]) -> None:
    """Runs the jobs and prints the table; raises LeashError where a job failed or none could start."""
    command = preflight.read(arguments, overrides.recorded(layout.OVERRIDES))
    started = None
    if command.runs:
        preflight.require_committed()
        preflight.require_runnable(command.overrides)
        checkout.remove_abandoned()
        started = sweep.start(git("rev-parse", "HEAD"), command.keys)
    sys.argv = [sys.argv[0], *command.arguments, *([sweep.override(started)] if started else [])]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here as they are, and not as Hydra's report of them
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")  # of what a sweep that had to be broken off twice left behind
    failure: LeashError | None = None
    patience = PATIENCE
    try:
        with stopping.impatient(PATIENCE):  # joblib waits for good for a job that was killed while it wrote its result
            hydra.main(config_path=str(layout.CONF.resolve()), config_name=preflight.PRIMARY, version_base="1.3")(job.run)()
        patience = 0.0
    except LeashError as error:  # the first job's that failed; the others have run all the same
        failure = error
    except (HydraException, OmegaConfBaseException, ValueError, TimeoutError) as error:  # the last two are a launcher's, of its settings
        failure = preflight.explained(error)
    except BrokenProcessPool:
        failure = LeashError(
            "sweep: a process that ran jobs was killed, as when memory runs out, and the others were stopped; run the sweep again, "
            "with fewer at once (hydra.launcher.n_jobs=1) where it was memory"
        )
    finally:  # also of a sweep that is broken off
        checkout.remove_abandoned(patience=patience)
        problems = _concluded(started)
    if failure is not None:
        raise failure if not problems else LeashError(list(dict.fromkeys([*problems, *failure.problems])))


def _concluded(started: Sweep | None) -> list[str]:
    """Prints the table of the jobs, where any were started, and gives the problems of those that failed."""
    if started is None or results.SweepCallback.ranking is None:
        return []
    conclusion = results.conclude(results.SweepCallback.ranking, started.name, started.commit)
    if conclusion.table:
        runner.show("sweep", conclusion.table)
    return conclusion.problems


if __name__ == "__main__":
    if {"--help", "-h"} & set(sys.argv[1:]):
        runner.print_help(main)
    runner.attempt("sweep", lambda: main(sys.argv[1:]))
