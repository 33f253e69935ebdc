from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from stages.core.composition import tree
from stages.sweeps.job import experiment_name, sections

COMMIT = "a" * 40
LAUNCHERS = {"parallel": "JoblibLauncher", "slurm": "SlurmLauncher", "submitit_local": "LocalLauncher"}


@pytest.fixture
def project(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(root)
    return root / "conf"


def test_the_same_settings_make_the_same_experiment_however_they_are_put(project: Path):
    names = [
        experiment_name(tree.composed(project, texts), COMMIT)
        for texts in (["grpo.beta=0.10"], ["grpo.beta=1e-1", "grpo.rank=8"], ["grpo.beta=0.2"])
    ]
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("sweep-")


def test_what_no_stage_depends_on_makes_no_other_experiment(project: Path):
    plain = experiment_name(tree.composed(project, []), COMMIT)
    assert (
        experiment_name(tree.composed(project, ["runtime.threads=4", "sweep.metric=accuracy", "sweep.direction=minimize"]), COMMIT) == plain
    )
    assert experiment_name(tree.composed(project, ["evaluate.seed=8"]), COMMIT) != plain
    assert experiment_name(tree.composed(project, []), "b" * 40) != plain


def test_overrides_move_the_sections_of_their_keys_and_an_experiment_may_move_all():
    assert sections(["grpo.beta=1", "reward=large", "runtime.threads=2"]) == {"grpo", "reward"}
    assert sections(["experiment=gsm8k"]) == {"base", "data", "reward", "grpo", "evaluate", "export"}
    assert sections([]) == set()


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launchers_preset_is_composed(project: Path, name: str):
    config = composed(project, f"hydra/launcher={name}")
    assert config.hydra.launcher._target_.endswith(f".{LAUNCHERS[name]}")


def test_rays_preset_is_composed_where_its_plugin_is_installed(project: Path):
    pytest.importorskip(
        "hydra_plugins.hydra_ray_launcher", reason="hydra-ray-launcher is not installed: it wants an older cloudpickle than joblib"
    )
    assert composed(project, "hydra/launcher=ray_cluster").hydra.launcher.ray.remote.num_cpus == 4


def test_optunas_preset_searches_in_the_sweeps_direction(project: Path):
    config = composed(project, "hydra/sweeper=search", "sweep.direction=minimize")
    assert (config.hydra.sweeper.direction, config.hydra.sweeper._target_.rpartition(".")[2]) == ("minimize", "OptunaSweeper")


def test_jobs_run_two_at_once_by_default(project: Path):
    assert (composed(project).hydra.launcher.n_jobs, composed(project).hydra.mode.name) == (2, "MULTIRUN")


def composed(conf: Path, *overrides: str):
    """What the sweep's Hydra app composes, Hydra's own part with it."""
    with initialize_config_dir(str(conf), version_base="1.3"):
        return compose("multirun", overrides=list(overrides), return_hydra_config=True)
