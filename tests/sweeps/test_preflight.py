import shutil
from pathlib import Path

import pytest
from hydra.errors import HydraException

from stages.core.errors import SettingsError
from stages.sweeps import preflight
from tests.conftest import git


@pytest.fixture
def project(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)


def test_recorded_overrides_come_first_unless_the_sweep_names_their_key(project: None):
    recorded = ["base=hub", "base.model=org/name", "grpo.beta=0.1", "experiment=null"]
    command = preflight.read(["-m", "grpo.beta=0.2,0.3", "hydra.launcher.n_jobs=4"], recorded)
    kept = ["base=hub", "++base.model=org/name", "~experiment", "grpo.beta=0.2,0.3", "hydra.launcher.n_jobs=4"]
    assert command == (["--multirun", *kept], kept, ["grpo.beta"], True)
    assert [preflight.as_recorded(text) for text in ("~experiment=null", "~experiment", "grpo.beta=1")] == ["experiment=null"] * 2 + [
        "grpo.beta=1"
    ]


def test_what_hydras_own_settings_sweep_is_checked_too(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(root / "conf", tmp_path / "conf")
    shutil.copytree(root / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "data")
    with Path("conf/multirun.yaml").open("a") as stream:
        stream.write("  sweeper:\n    params:\n      grpo.beta: 0,-1\n      runtime.threads: 1,2\n")
    found = problems("grpo.rank=4")
    assert [line.partition(":")[0] for line in found] == ["runtime.threads", "grpo.beta"]
    command = preflight.read(["grpo.rank=4"], ["grpo.beta=0.5", "grpo.alpha=4"])
    assert command.overrides == ["++grpo.alpha=4", "grpo.rank=4"]  # what is swept takes the recorded one's place
    assert command.keys == ["grpo.rank", "grpo.beta", "runtime.threads"]


def test_data_that_no_job_would_have_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("conf", "data"):
        shutil.copytree(root / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")
    Path(".gitignore").write_text("*.json\n")
    assert [line.partition(" is tracked")[0] for line in problems("grpo.beta=0,1")] == [
        "data.prompts: data/prompts.json",
        "data.pairs: data/pairs.json",
    ]
    Path("data/prompts.json.dvc").touch()
    git(tmp_path, "add", "data/prompts.json.dvc")
    git(tmp_path, "add", "--force", "data/pairs.json")
    preflight.require_runnable(["grpo.beta=0,1"])


def test_a_key_is_given_once(project: None):
    with pytest.raises(
        SettingsError, match=r"^grpo\.beta is given twice: leave one of them out; several values of one key stand behind commas"
    ):
        preflight.read(["grpo.beta=0.1", "grpo.rank=4", "++grpo.beta=0.2"], [])


@pytest.mark.parametrize("flags", [["--config-name", "config"], ["-cd", "conf"], ["--config-path", "x"]])
def test_another_configuration_is_refused(flags: list[str]):
    with pytest.raises(SettingsError, match=r"^--config-(name|dir|path): a sweep composes conf/multirun\.yaml"):
        preflight.read(flags, [])


@pytest.mark.parametrize("flags", [["--cfg", "job"], ["--info", "defaults"], ["--hydra-help"]])
def test_what_hydra_is_only_to_show_runs_no_job(flags: list[str]):
    command = preflight.read([*flags, "grpo.beta=1"], [])
    assert (command.arguments, command.runs) == ([*flags, "grpo.beta=1"], False)


def problems(*texts: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        preflight.require_runnable(list(texts))
    return caught.value.lines()


def test_settings_of_every_job_are_checked_and_each_problem_is_told_once(project: None):
    preflight.require_runnable(["grpo.beta=0,0.1", "grpo.group=range(2,6,2)", "reward=glob(*)", "hydra.launcher.n_jobs=2"])
    found = problems("grpo.beta=0,-1", "grpo.group=1,4", "grpo.betta=1")
    assert sorted(line.split(":")[0].split()[0] for line in found) == ["grpo.beta", "grpo.betta", "grpo.group"]


def test_an_interval_is_tried_at_both_ends(project: None):
    preflight.require_runnable(["grpo.beta=interval(0,1)", "grpo.learning_rate=tag(log,interval(1e-4,1e-2))"])
    assert "requires a finite beta of zero or more" in problems("grpo.beta=interval(-1,1)")[0]
    assert "top_p must be above zero and at most one" in problems("grpo.top_p=interval(0.5,1.5)")[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("runtime.threads=1,2", "runtime.threads: no stage depends on runtime"),
        ("sweep.direction=maximize,minimize", "sweep.direction: no stage depends on sweep"),
        ("experiment=null,gsm8k", "experiment=null,gsm8k: expected KEY=VALUES in Hydra's grammar: null is no option beside others"),
        ("grpo.beta=1,", "grpo.beta=1,: expected KEY=VALUES in Hydra's grammar"),
        ("sweep.metric=nothing_like_it", 'sweep.metric: reports/evaluate.json has no figure "nothing_like_it"; it has heldout_pairs'),
        ("sweep.metric=Nope", "sweep.metric: a figure of reports/evaluate.json"),
    ],
)
def test_what_makes_no_sweep_is_refused(project: None, text: str, line: str):
    assert problems(text)[0].startswith(line)


@pytest.mark.parametrize("metric", ["reward_gain", "grpo.mean_reward", "training_reward_gain"])
def test_a_metric_that_a_report_has_or_may_get_is_taken(project: None, metric: str):
    preflight.require_runnable([f"sweep.metric={metric}"])


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "In 'hydra/launcher/ray_cluster': Could not load 'hydra/launcher/ray'.\nConfig search path:\n\tprovider=main",
            "In 'hydra/launcher/ray_cluster': Could not load 'hydra/launcher/ray'.; it comes with a plugin: pip install hydra-ray-launcher",
        ),
        ("Could not find 'hydra/launcher/submitit_slurm'", "it comes with a plugin: pip install hydra-submitit-launcher"),
        ("Could not find 'hydra/launcher/nope'\n\nAvailable options", "Could not find 'hydra/launcher/nope' Available options"),
        ("BasicSweeper does not support sweep type : INTERVAL_SWEEP", "add hydra/sweeper=search (pip install hydra-optuna-sweeper)"),
    ],
)
def test_hydras_refusals_are_one_line_with_what_to_install(said: str, line: str):
    assert preflight.explained(HydraException(said)).lines()[0].endswith(line)
