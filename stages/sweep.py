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
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from stages.core import layout, runner
from stages.core.composition import overrides
from stages.core.errors import LeashError
from stages.versions import job, launch, processes, results, workspace

PRIMARY = "multirun"
"""The file in conf/ that Hydra composes."""


def main(arguments: Sequence[str]) -> None:
    """Runs the jobs and prints the table; raises LeashError where a job failed or none could start."""
    command = launch.read(arguments, overrides.recorded(layout.OVERRIDES))
    if command.runs:
        launch.require_committed()
        launch.require_runnable(command.overrides)
        workspace.remove_abandoned()
        processes.name_sweep()
    sys.argv = [sys.argv[0], *command.arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here as they are, and not as Hydra's report of them
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
    failure: LeashError | None = None
    try:
        hydra.main(config_path=str(layout.CONF.resolve()), config_name=PRIMARY, version_base="1.3")(job.run)()
    except LeashError as error:  # the first job that failed; the others have run all the same
        failure = error
    except (HydraException, OmegaConfBaseException) as error:
        raise launch.explained(error) from error
    finally:
        workspace.remove_abandoned()
    if results.Started.sweep is not None:
        conclusion = results.conclude(results.Started.sweep)
        runner.show("sweep", conclusion.table)
        if conclusion.problems:
            raise LeashError(conclusion.problems)
    if failure is not None:
        raise failure


if __name__ == "__main__":
    if {"--help", "-h"} & set(sys.argv[1:]):
        runner.print_help(main)
    runner.attempt("sweep", lambda: main(sys.argv[1:]))
