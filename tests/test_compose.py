"""Stage compose: what a call records, writes, prints and refuses."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages import compose
from stages.core.errors import SettingsError

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """A project that was composed once."""
    folder = tmp_path_factory.mktemp("composed")
    shutil.copytree(ROOT / "conf", folder / "conf")
    (folder / "conf" / "overrides.yaml").write_text("overrides: []\n")
    (folder / "data").mkdir()
    for name in ("prompts.json", "pairs.json"):
        (folder / "data" / name).write_text("{}")
    done = process(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def project(composed, tmp_path, monkeypatch):
    """A copy of it, the current folder while the test runs."""
    shutil.copytree(composed, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def run(*arguments):
    document = compose.main(compose.read_arguments(arguments))
    assert document.path == Path("params.yaml")
    return document.report


def refused(*arguments):
    before = written()
    with pytest.raises(SettingsError) as error:
        run(*arguments)
    assert error.value.exit_code == 2
    assert written() == before
    return error.value.lines()


def written():
    return [path.read_bytes() if path.exists() else None for path in (Path("params.yaml"), Path("conf/overrides.yaml"))]


def params():
    return yaml.safe_load(Path("params.yaml").read_text())


def active():
    return yaml.safe_load(Path("conf/overrides.yaml").read_text())["overrides"]


def edit(path, old, new):
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


def process(folder, *arguments):
    command = [sys.executable, "-m", "stages.compose", *arguments]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)


def test_a_call_records_composes_and_reports_what_changed(project):
    assert run("grpo.beta=0.1", "reward=large") == {
        "overrides": ["grpo.beta=0.1", "reward=large"],
        "changed": {"reward.rank": {"from": 8, "to": 32}, "grpo.beta": {"from": 0.04, "to": 0.1}},
    }
    assert (params()["grpo"]["beta"], params()["reward"]["rank"]) == (0.1, 32)
    assert active() == ["grpo.beta=0.1", "reward=large"]


def test_the_same_key_is_replaced_in_place_and_others_are_kept(project):
    run("grpo.beta=0.1", "reward=large")
    assert run("grpo.beta=0.2")["overrides"] == ["grpo.beta=0.2", "reward=large"]
    assert active() == ["grpo.beta=0.2", "reward=large"]


def test_without_arguments_what_is_recorded_is_composed(project):
    Path("conf/overrides.yaml").write_text("overrides: [grpo.beta=0.3]\n")
    assert run() == {"overrides": ["grpo.beta=0.3"], "changed": {"grpo.beta": {"from": 0.04, "to": 0.3}}}


def test_an_edit_in_conf_is_composed(project):
    edit("conf/grpo/default.yaml", "beta: 0.04", "beta: 0.05")
    assert run()["changed"] == {"grpo.beta": {"from": 0.04, "to": 0.05}}


@pytest.mark.slow
def test_drop_takes_one_back_and_reset_all(project):
    run("grpo.beta=0.1", "reward=large", "grpo.seed=3")
    assert run("--drop", "reward", "grpo.seed")["overrides"] == ["grpo.beta=0.1"]
    assert run("--reset") == {"overrides": [], "changed": {"grpo.beta": {"from": 0.1, "to": 0.04}}}
    assert active() == []


@pytest.mark.slow
def test_a_call_can_add_and_drop_and_start_from_none(project):
    run("grpo.beta=0.1", "reward=large")
    assert run("grpo.seed=3", "--drop", "reward")["overrides"] == ["grpo.beta=0.1", "grpo.seed=3"]
    assert run("--reset", "grpo.rank=4")["overrides"] == ["grpo.rank=4"]


@pytest.mark.slow
def test_files_that_would_not_change_are_not_written(project):
    run("grpo.beta=0.1")
    Path("conf/overrides.yaml").write_text("overrides: [grpo.beta=0.1]  # mine\n")
    before = [Path(name).stat().st_mtime_ns for name in ("params.yaml", "conf/overrides.yaml")]
    run()
    run("grpo.beta=0.1")
    assert [Path(name).stat().st_mtime_ns for name in ("params.yaml", "conf/overrides.yaml")] == before


def test_the_same_settings_are_the_same_bytes_however_they_are_written(project):
    run("grpo.learning_rate=5e-5")
    first = Path("params.yaml").read_bytes()
    run("grpo.learning_rate='0.00005'")
    assert Path("params.yaml").read_bytes() == first


@pytest.mark.parametrize(
    "arguments", [("grpo.betta=1",), ("grpo.group=1",), ("reward=huge",), ("--drop", "seed"), ("grpo.beta=1,2", "grpo.seed=3")]
)
def test_a_refused_call_writes_neither_file(project, arguments):
    run("grpo.beta=0.1")
    assert refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("--drop",), "--drop: expected a key after it"),
        (("--drop", "grpo.beta=1"), "grpo.beta=1: --drop takes keys"),
        (("--reset", "--drop", "grpo.beta"), "--reset: drops every override"),
        (("--force",), "--force: expected KEY=VALUE, --drop KEY or --reset"),
        (("grpo.beta=1", "grpo.beta=2"), "grpo.beta is given twice"),
        (("grpo.beta",), "grpo.beta: expected KEY=VALUE"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(project, arguments, where):
    (line,) = refused(*arguments)
    assert line.startswith(where)


def test_a_recorded_override_that_went_bad_is_refused_and_can_be_mended(project):
    Path("conf/overrides.yaml").write_text("overrides: [grpo.betta=0.3]\n")
    assert refused() == ["grpo.betta is not a setting; did you mean grpo.beta?"]
    assert run("--drop", "grpo.betta")["overrides"] == []
    Path("conf/overrides.yaml").write_text("[")
    assert refused("grpo.beta=1")[0].startswith("conf/overrides.yaml:")
    assert run("--reset")["overrides"] == []
    assert active() == []


def test_values_edited_by_hand_are_refused_with_their_keys_and_the_call_that_keeps_them(project):
    edit("params.yaml", "beta: 0.04", "beta: 1e-06")
    edit("params.yaml", "reward: artifacts/reward/reward.safetensors", "reward: length")
    (line,) = refused()
    assert line.startswith("params.yaml: ")
    assert "grpo.beta (found 1e-06, composed 0.04)" in line
    command = line.partition("run python -m stages.compose ")[2].partition(";")[0]
    assert command == "grpo.reward=length grpo.beta=1e-06"
    run(*shlex.split(command))
    assert (params()["grpo"]["beta"], params()["grpo"]["reward"]) == (1e-06, "length")


def test_an_option_that_dvc_wrote_over_a_section_is_refused_once_with_its_call(project):
    values = params()
    values["reward"] = "large"
    Path("params.yaml").write_text(yaml.safe_dump(values))
    (line,) = refused()
    assert 'reward (found "large", composed nothing)' in line
    assert "reward.rank" not in line
    assert "run python -m stages.compose reward=large;" in line


@pytest.mark.slow
def test_discarding_an_edit_is_removing_the_file(project):
    composed = Path("params.yaml").read_bytes()
    edit("params.yaml", "beta: 0.04", "beta: 0.3")
    assert refused()[0].endswith("to discard it, remove params.yaml and run python -m stages.compose")
    Path("params.yaml").unlink()
    run()
    assert Path("params.yaml").read_bytes() == composed


def test_an_edit_that_is_what_would_be_composed_is_taken(project):
    edit("params.yaml", "beta: 0.04", "beta: 0.3")
    edit("conf/grpo/default.yaml", "beta: 0.04", "beta: 0.3")
    assert run()["changed"] == {}
    run()


@pytest.mark.parametrize("arguments", [("grpo.seed=3",), ("--drop", "grpo.rank"), ("--reset",)])
def test_with_arguments_an_edited_file_is_written_anew(project, arguments):
    run("grpo.rank=4")
    edit("params.yaml", "beta: 0.04", "beta: 0.3")
    assert run(*arguments)["changed"]["grpo.beta"] == {"from": 0.3, "to": 0.04}
    assert params()["grpo"]["beta"] == 0.04


@pytest.mark.parametrize("content", [None, "a: [", "3", "\x00"])
def test_a_file_that_is_not_there_or_cannot_be_read_is_composed_anew_and_said(project, capsys, content):
    composed = Path("params.yaml").read_bytes()
    Path("params.yaml").unlink() if content is None else Path("params.yaml").write_text(content)
    capsys.readouterr()
    assert run()["changed"] == {}
    assert Path("params.yaml").read_bytes() == composed
    captured = capsys.readouterr()
    assert "params.yaml" in captured.err
    assert captured.err.endswith(": composed anew\n")


@pytest.mark.slow
def test_the_active_overrides_are_on_stderr_each_time(project, capsys):
    run("grpo.beta=0.1", "reward=large")
    run()
    assert capsys.readouterr().err.count("overrides: grpo.beta=0.1 reward=large\n") == 2
    run("--reset")
    assert capsys.readouterr().err == "overrides: none\n"


@pytest.mark.slow
def test_as_a_process_it_prints_one_document_and_refuses_on_stderr_with_exit_2(project):
    done = process(project, "grpo.beta=0.1")
    assert (done.returncode, done.stderr) == (0, "overrides: grpo.beta=0.1\n")
    assert json.loads(done.stdout) == {
        "path": "params.yaml",
        "report": {"overrides": ["grpo.beta=0.1"], "changed": {"grpo.beta": {"from": 0.04, "to": 0.1}}},
    }
    before = written()
    done = process(project, "grpo.group=1", "grpo.seed='???'")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [line.split(" ")[0].rstrip(":") for line in lines] == ["grpo.group", "grpo.seed"]
    assert written() == before
    done = process(project, "--help")
    assert (done.returncode, done.stdout.startswith("Stage compose: "), done.stderr) == (0, True, "")


@pytest.mark.slow
def test_composing_imports_no_torch(project):
    code = "import sys, stages.compose; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.slow
def test_two_calls_at_once_lose_nothing_of_either(project):
    command = [sys.executable, "-m", "stages.compose"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    calls = [
        subprocess.Popen([*command, override], cwd=project, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for override in ("grpo.beta=0.7", "grpo.alpha=7", "grpo.rank=3")
    ]
    assert [call.wait() for call in calls] == [0, 0, 0]
    assert sorted(active()) == ["grpo.alpha=7", "grpo.beta=0.7", "grpo.rank=3"]
