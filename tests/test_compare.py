"""Comparing versions from the command line: what is named after which change, and what stays as it was."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages import compare
from stages.compare import Request, main, read_arguments
from stages.core import layout
from stages.core.composition import params_yaml
from stages.core.errors import ArtifactError, BaseError, DataError, LeashError, SettingsError, TrainingError
from stages.files import artifacts, base_record, outputs, records
from stages.files.artifacts import REWARD
from stages.files.fingerprint import Digests
from stages.files.records import Prompt
from stages.versions.comparison import DRAW_SETTINGS
from tests.conftest import ROOT, git
from tests.versions.projects import MODULES, PIPELINE, PROMPTS, Project, artifact, base, evaluated, samples

NO_NUMBERS = ("0", "1001", "-1", "x", "1.5", "", "\u0663", "9" * 30)
LONG = [Prompt("the toy drops " * 300)]
PAIR = {"chosen": "yes", "rejected": "no"}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Three versions: `first`, `beta` after a change of beta, `rows` after one of the data; to be copied."""
    project = Project.begun(tmp_path_factory.mktemp("history") / "project")
    project.commit("first")
    project.settings(grpo={"beta": 0.1}, runtime={"threads": 2})
    project.artifact(layout.POLICY, artifact(seed=1))
    project.samples(samples(policy="second", gain=0.5))
    project.report("evaluate", evaluated(reward_gain=0.75))
    project.commit("beta")
    project.rows(train=["trained on", PROMPTS[1]], heldout=[PROMPTS[0], *PROMPTS[2:], "a new one"], pairs=[PAIR])
    project.samples(samples([PROMPTS[0], *PROMPTS[2:], "a new one"], policy="second", gain=0.5))
    project.commit("rows")
    return project


@pytest.fixture
def project(history: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A copy of it, the current folder."""
    shutil.copytree(history.folder, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return Project(tmp_path / "project")


def text(*arguments: str) -> str:
    return main(read_arguments(arguments))


def document(*arguments: str) -> dict[str, Any]:
    def refused(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text(*arguments, "--json"), parse_constant=refused)


# The command line


def test_b_is_the_workspace_unless_it_is_given():
    assert read_arguments(["v1"]) == Request("v1", "workspace", False, None, None)
    assert read_arguments(["--json", "v1", "--sample=3", "v2", "--html", "a.html"]) == Request("v1", "v2", True, Path("a.html"), 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "python -m stages.compare: expected one or two versions, found 0; see --help"),
        (["a", "b", "c"], "python -m stages.compare: expected one or two versions, found 3; see --help"),
        (["a", "--nope"], "--nope: expected A, B, --json, --html FILE or --sample N"),
        (["a", "--json=yes"], "--json: expected A, B, --json, --html FILE or --sample N"),
        (["a", "--html"], "--html: expected a file after it"),
        (["a", "--sample"], "--sample: expected a number after it"),
        *((["a", "--sample", number], f"--sample: found {number!r}, expected a whole number from 1 to 1000") for number in NO_NUMBERS),
        (["a", "--html", "page.txt"], "--html: page.txt is not named as a page; expected a file that ends with .html or .htm"),
        (
            ["a", "--html", "reports/a.html"],
            "--html: reports/a.html lies in reports/, which the pipeline reads or writes; name a file elsewhere",
        ),
        (
            ["a", "--html", "x/../artifacts/b/a.html"],
            "--html: x/../artifacts/b/a.html lies in artifacts/, which the pipeline reads or writes; name a file elsewhere",
        ),
        (["a", "--html", "no/a.html"], "--html: there is no folder no to put a.html into; make it, or name another"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(arguments: list[str], said: str):
    with pytest.raises(SettingsError) as caught:
        read_arguments(arguments)
    assert caught.value.lines() == [said]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "stages.compare", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_prints_the_comparison_alone_on_stdout_and_exits_with_its_code(project: Project):
    done = run(project.folder, "first", "beta")
    assert (done.returncode, done.stderr.splitlines()) == (0, [f"reading first ({short('first')})", f"reading beta ({short('beta')})"])
    assert done.stdout == text("first", "beta") + "\n"
    assert json.loads(run(project.folder, "first", "beta", "--json").stdout) == document("first", "beta")
    done = run(project.folder, "frist")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("did you mean first?\n")
    done = run(project.folder, "--help")
    assert (done.returncode, done.stdout) == (0, f"{compare.__doc__.strip()}\n")


@pytest.mark.slow
def test_without_new_completions_no_torch_is_imported():
    program = "import sys, stages.compare; print(sorted({'torch', 'transformers', 'peft', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


# What is compared


def short(name: str) -> str:
    return git(Path(), "rev-parse", "--short=7", f"{name}^{{commit}}").strip()


@pytest.mark.slow
def test_after_a_change_of_beta_it_names_the_change_the_metrics_every_tensor_and_every_heldout_prompt(project: Project):
    found = document("first", "beta")
    assert found["settings"] == [
        {"key": "grpo.beta", "a": 0.04, "b": 0.1, "rounding_alone": False},
        {"key": "runtime.threads", "a": 1, "b": 2, "rounding_alone": True},
    ]
    assert (found["unavailable"], found["notes"], found["base"]) == ([], [], [])
    gain = next(one for one in found["metrics"] if one["key"] == "reward_gain")
    assert (gain["a"]["value"], gain["b"], gain["difference"]) == (0.5, {"value": 0.75, "low": 0.25, "high": 0.75}, 0.25)
    reward, policy = found["artifacts"]
    assert (reward["identical"], len(reward["tensors"])) == (True, 17)
    assert {one["name"] for one in policy["tensors"]} == {
        f"base_model.model.{module}.lora_{side}.weight" for module in MODULES for side in "AB"
    }
    assert [one["name"] for one in policy["updates"]] == MODULES
    assert all(one["relative_change"] > 0 and -1 <= one["cosine"] <= 1 for one in (*policy["updates"], *policy["tensors"]))
    assert {one["prompt"] for one in found["heldout"]["prompts"]} == set(PROMPTS)
    # gain * place over the places 0..3
    assert found["heldout"]["paired"]["difference"] == pytest.approx(0.75)
    assert found["heldout"]["paired"]["difference_low"] < 0.75 < found["heldout"]["paired"]["difference_high"]
    assert not any(one["added"] or one["removed"] or one["moved"] for one in found["rows"])
    shown = text("first", "beta")
    for name in ("grpo.beta", "evaluate.reward_gain", *PROMPTS, *(one["name"] for one in policy["tensors"])):
        assert name in shown


@pytest.mark.slow
def test_after_a_change_of_data_it_names_the_rows(project: Project):
    found = document("beta", "rows")
    prompts, pairs = found["rows"]
    assert prompts["added"] == [{"split": "heldout", "row": {"prompt": "a new one"}}]
    assert prompts["moved"] == [{"split": "train", "row": {"prompt": PROMPTS[1]}}]
    assert (prompts["removed"], pairs["added"]) == ([], [{"split": "train", "row": PAIR}])
    assert (found["heldout"]["only_a"], found["heldout"]["only_b"]) == ([PROMPTS[1]], ["a new one"])
    assert "the held-out prompts differ" in " ".join(found["notes"])
    reverse = document("rows", "beta")["rows"][0]
    assert (reverse["removed"], reverse["moved"][0]["split"]) == (prompts["added"], "heldout")
    shown = text("beta", "rows")
    assert "prompts: 1 added, 0 removed, 1 moved" in shown
    assert re.search(r"^added +heldout +a new one$", shown, re.MULTILINE)
    assert re.search(rf"^moved +train +{PROMPTS[1]}$", shown, re.MULTILINE)


@pytest.mark.slow
def test_a_version_equals_itself_by_any_of_its_names(project: Project):
    git(project.folder, "branch", "other", "rows")
    for b in ("other", "HEAD", "workspace"):
        shown = text("rows", b)
        assert "nothing differs" in shown
        assert "policy: identical (16 tensors" in shown


@pytest.mark.slow
def test_an_experiment_and_the_workspace_as_it_is_can_be_compared(project: Project):
    first, beta = (git(project.folder, "rev-parse", name).strip() for name in ("first", "beta"))
    project.experiment("brave-toy", beta, baseline=first)
    project.artifact(layout.POLICY, artifact(seed=7))
    project.settings(grpo={"beta": 0.2})
    found = document("brave-toy")
    assert (found["a"]["name"], found["a"]["commit"], found["b"]["commit"]) == ("brave-toy", beta, None)
    assert found["settings"][0] == {"key": "grpo.beta", "a": 0.1, "b": 0.2, "rounding_alone": False}
    assert [one["identical"] for one in found["artifacts"]] == [True, False]


@pytest.mark.slow
def test_nothing_is_checked_out_and_nothing_is_written(project: Project):
    def state() -> dict[str, bytes]:
        skipped = (".git", ".dvc")
        return {str(path): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file() and path.parts[0] not in skipped}

    before = state(), git(project.folder, "rev-parse", "HEAD"), git(project.folder, "status", "--porcelain")
    text("first", "beta")
    text("first")
    assert (state(), git(project.folder, "rev-parse", "HEAD"), git(project.folder, "status", "--porcelain")) == before


@pytest.mark.slow
def test_what_cannot_be_had_is_named_and_the_rest_is_compared(project: Project):
    shutil.rmtree(".dvc/cache")
    found = document("beta", "workspace")
    label = f"beta ({short('beta')})"
    assert [re.match(r"artifacts/[\w.]+(/base.json)? of ", line)[0] + label for line in found["unavailable"]] == [
        f"{name} of {label}"
        for name in ("artifacts/base/base.json", "artifacts/reward", "artifacts/grpo", "artifacts/validate", "artifacts/evaluate")
    ]
    assert found["settings"] == []
    assert {one["key"] for one in found["metrics"]} == {"accuracy", "reward_gain", "win_rate", "mean_kl"}
    assert (found["artifacts"], found["rows"], found["heldout"], found["base"]) == ([], [], None, None)
    assert "nothing differs" not in text("beta", "workspace")


@pytest.mark.slow
def test_a_damaged_file_is_named_and_the_rest_is_compared(project: Project):
    layout.POLICY.write_bytes(b"")
    layout.SAMPLES.write_text("{\n")
    layout.report("grpo").write_text("NaN")
    found = document("rows")
    assert [line.split(":")[:2] for line in found["unavailable"]] == [
        ["workspace", " reports/grpo.json"],
        ["workspace", " artifacts/grpo/policy.safetensors"],
        ["workspace", " artifacts/evaluate/samples.jsonl"],
    ]
    assert [one["name"] for one in found["artifacts"]] == ["reward"]
    assert len(found["rows"]) == 2


@pytest.mark.slow
def test_rewards_of_another_reward_model_are_not_compared(project: Project):
    project.artifact(layout.REWARD, artifact(REWARD, seed=4))
    found = document("rows")
    assert found["heldout"]["paired"] is None
    assert {one["difference"] for one in found["heldout"]["prompts"]} == {None}
    assert "rewards are of two different reward models, and not comparable" in " ".join(found["notes"])


@pytest.mark.slow
def test_other_draws_and_another_base_are_said(project: Project):
    project.record(base(weights_sha256="v"))
    project.settings(evaluate={"seed": 8, "top_p": 0.5, "bootstrap": 60})
    notes = document("rows")["notes"]
    assert "held-out completions were not drawn alike: evaluate.seed, evaluate.top_p differ" in notes
    assert any("different fingerprints" in note for note in notes)
    assert [one["key"] for one in document("rows")["base"]] == ["weights_sha256", "fingerprint"]


@pytest.mark.slow
def test_where_nothing_can_be_compared_that_is_the_error(project: Project):
    layout.PARAMS.write_text("[")
    shutil.rmtree("artifacts")
    shutil.rmtree("reports")
    git(project.folder, "rm", "-q", "-r", "--cached", "reports")
    git(project.folder, "add", "params.yaml")
    git(project.folder, "commit", "-q", "-m", "broken")
    shutil.rmtree(".dvc/cache")
    with pytest.raises(LeashError) as caught:
        text("HEAD")
    assert caught.value.exit_code == 1
    assert any("params.yaml" in line for line in caught.value.problems)


@pytest.mark.slow
def test_a_page_is_written_whole_beside_what_is_printed(project: Project, capsys: pytest.CaptureFixture[str]):
    Path("pages").mkdir()
    assert text("first", "beta", "--html", "pages/new.html") == text("first", "beta")
    content = Path("pages/new.html").read_text("utf-8")
    assert content.startswith("<!doctype html>")
    assert all(name in content for name in ("grpo.beta", *PROMPTS, *MODULES))
    assert "wrote pages/new.html" in capsys.readouterr().err
    assert [path.name for path in Path("pages").iterdir()] == ["new.html"]


# New completions


@pytest.fixture
def sampled(trained_project: Path) -> Path:
    """The trained project, committed as `first`; its policy in the workspace is one that another seed trained since."""
    from tests import stage_settings

    stage_settings.run("evaluate")
    layout.PARAMS.write_bytes(params_yaml.render(stage_settings.values()))
    Path("dvc.yaml").write_text(PIPELINE)
    for arguments in (["init", "--quiet", "--initial-branch=main"], ["config", "user.name", "t"], ["config", "user.email", "t@localhost"]):
        git(trained_project, *arguments)
    project = Project(trained_project)
    Path(".gitignore").write_text("/artifacts/\n")
    project.dvc("init", "--quiet")
    project.commit("first")
    stage_settings.run("grpo", seed=5)
    stage_settings.run("evaluate")
    return trained_project


@pytest.mark.slow
def test_new_completions_are_of_both_policies_on_the_same_draws_and_on_none_of_evaluates(sampled: Path):
    found = document("first", "--sample", "3")
    (fresh,) = found["fresh"]
    assert fresh["scored_by"] == "B's reward model"
    assert [len(one["draws"]) for one in fresh["prompts"]] == [3, 3, 3]
    heldout = [row.prompt for row in records.load_prompts(layout.HELDOUT_PROMPTS)]
    assert sorted(one["prompt"] for one in fresh["prompts"]) == sorted(heldout)
    evaluate = {(one["prompt"], draw["draw"]): draw for one in found["heldout"]["prompts"] for draw in one["draws"]}
    drawn = {(one["prompt"], draw["draw"]): draw for one in fresh["prompts"] for draw in one["draws"]}
    assert any(drawn[key]["policy_a"] != evaluate[key]["policy_a"] for key in evaluate)
    rewards = {side: [draw[f"reward_{side}"] for draw in drawn.values()] for side in "ab"}
    assert fresh["paired"]["reward_a"] == pytest.approx(sum(rewards["a"]) / 9)
    assert fresh["paired"]["difference"] == pytest.approx((sum(rewards["b"]) - sum(rewards["a"])) / 9)
    assert "fresh completions: 3 prompts, scored by B's reward model" in text("first", "--sample", "1")
    # the first draws of three are the one draw alone: draws go by their number
    (one,) = document("first", "--sample", "1")["fresh"]
    assert {(prompt["prompt"], prompt["draws"][0]["policy_b"]) for prompt in one["prompts"]} == {
        (prompt, draw["policy_b"]) for (prompt, number), draw in drawn.items() if number == 0
    }


@pytest.mark.slow
def test_a_policy_against_itself_differs_in_nothing(sampled: Path):
    (fresh,) = document("first", "first", "--sample", "2")["fresh"]
    assert fresh["paired"]["difference"] == 0.0
    assert fresh["paired"]["win_rate"] == 0.5
    assert all(draw["policy_a"] == draw["policy_b"] for one in fresh["prompts"] for draw in one["draws"])


@pytest.mark.slow
def test_the_base_is_fetched_where_the_workspace_has_another(sampled: Path):
    here = document("first", "first", "--sample", "1")["fresh"]
    shutil.rmtree(layout.BASE)
    assert document("first", "first", "--sample", "1")["fresh"] == here


@pytest.mark.slow
def test_where_the_reward_models_are_two_both_score(sampled: Path):
    own = artifacts.read(layout.REWARD, REWARD)
    other = {name: tensor * (-1 if name == artifacts.HEAD else 1) for name, tensor in own.tensors.items()}
    artifacts.write(layout.REWARD, dataclasses.replace(own, tensors=other))
    fresh = document("first", "--sample", "2")["fresh"]
    assert [one["scored_by"] for one in fresh] == ["B's reward model", "A's reward model"]
    assert fresh[0]["paired"]["difference"] == pytest.approx(-fresh[1]["paired"]["difference"])  # the head turned round


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "error", "said"),
    [
        (lambda: shutil.rmtree(layout.POLICY.parent), ArtifactError, "--sample: both policies, their base and B's reward model are needed"),
        (lambda: records.write_prompts(layout.HELDOUT_PROMPTS, []), DataError, "prompts.heldout.jsonl: it has 0 rows"),
        (lambda: records.write_prompts(layout.HELDOUT_PROMPTS, LONG), TrainingError, "evaluate.max_sequence: every prompt"),
        (lambda: base_of("another"), BaseError, "--sample: A's base is"),
    ],
    ids=["policy", "prompts", "long", "base"],
)
def test_new_completions_that_cannot_be_drawn_are_refused(sampled: Path, broken: Any, error: type[LeashError], said: str):
    broken()
    with pytest.raises(error, match=re.escape(said)):
        text("first", "--sample", "1")


def base_of(weights: str) -> None:
    record = dataclasses.replace(base_record.read_base(), weights_sha256=weights)
    digests = Digests(record.weights_sha256, record.config_sha256, record.tokenizer_sha256, record.template_sha256)
    outputs.write_json(layout.BASE_RECORD, dataclasses.replace(record, fingerprint=digests.fingerprint(record.end_tokens)).as_json())


def test_the_settings_of_the_example_project_are_those_that_draws_depend_on():
    """A key that evaluate gets and draws depend on belongs to DRAW_SETTINGS."""
    stated = yaml.safe_load((ROOT / "conf/evaluate/default.yaml").read_text("utf-8"))
    assert {f"evaluate.{key}" for key in stated} == {*DRAW_SETTINGS, "evaluate.samples", "evaluate.bootstrap"}
