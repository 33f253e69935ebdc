import datetime

import pytest
import yaml

from stages.core.composition import params_yaml, tree

VALUES = {"grpo": {"beta": 1e-06, "targets": ["q_proj"], "reward": "length"}, "export": {}, "runtime": {"device": "cpu", "threads": None}}


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "params.yaml"
    found.write_bytes(params_yaml.render(VALUES))
    return found


def test_the_first_line_is_a_comment_with_the_digest_and_the_rest_are_the_values(path):
    first, rest = path.read_text().split("\n", 1)
    assert first.startswith("# ")
    assert first.endswith(f"sha256 of the values: {params_yaml.digest(VALUES)}")
    assert yaml.safe_load(rest) == VALUES
    assert "beta: 1.0e-06\n" in rest  # as PyYAML reads a float


def test_what_was_composed_is_untouched(path):
    assert params_yaml.read(path) == params_yaml.Stored(params_yaml.flatten(VALUES), True)


def test_comments_layout_and_order_are_not_values(path):
    first, _ = path.read_text().split("\n", 1)
    body = "# mine\nexport: {}\nruntime: {threads: null, device: cpu}\ngrpo: {reward: length, targets: [q_proj], beta: 0.000001}\n"
    path.write_text(f"{first}\n{body}")
    assert params_yaml.read(path).untouched


@pytest.mark.parametrize(
    ("old", "new"), [("1.0e-06", "1.0e-05"), ("length", "width"), ("- q_proj", "- k_proj"), ("  threads: null\n", ""), ("null", "1")]
)
def test_an_edited_value_is_seen(path, old, new):
    path.write_text(path.read_text().replace(old, new))
    assert not params_yaml.read(path).untouched


def test_a_file_without_its_first_line_is_not_untouched(path):
    path.write_text(path.read_text().split("\n", 1)[1])
    assert not params_yaml.read(path).untouched


@pytest.mark.parametrize(("content", "where"), [("a: [", ":"), ("a: 1\na: 2\n", ":2: "), ("3", ": it held no settings"), ("", ": it held")])
def test_a_file_that_cannot_be_read_is_said_to_be_so(path, content, where):
    path.write_text(content)
    assert params_yaml.read(path).why.startswith(f"{path}{where}")


def test_no_file_is_said_to_be_so(tmp_path):
    assert params_yaml.read(tmp_path / "params.yaml").why == f"{tmp_path}/params.yaml: there was no such file"


def test_a_number_that_dvc_wrote_as_text_is_that_number(project):
    values = tree.composed(project / "conf", ["grpo.beta=1e-06"])
    path = project / "params.yaml"
    path.write_bytes(params_yaml.render(values).replace(b"1.0e-06", b"1e-06"))
    assert params_yaml.changes(params_yaml.read(path).flat, params_yaml.flatten(values)) == {}


def test_changes_name_what_differs_what_came_and_what_went():
    assert params_yaml.changes({"a.x": 1, "a.y": 2, "a.z": 3}, {"a.x": 1, "a.y": 4, "b": None}) == {
        "a.y": {"from": 2, "to": 4},
        "b": {"from": None, "to": None},
        "a.z": {"from": 3, "to": None},
    }


def test_an_edit_that_no_override_could_make_is_told_without_a_call_to_keep_it(path):
    values = {**VALUES, "grpo": {**VALUES["grpo"], "beta": datetime.date(2020, 1, 1), "targets": ["k_proj"]}}
    path.write_text(yaml.safe_dump(values))
    (line,) = params_yaml.edited(path, params_yaml.read(path), params_yaml.flatten(VALUES)).problems
    assert 'grpo.beta (found "2020-01-01", composed 1e-06)' in line
    assert "to keep this, run python -m stages.compose 'grpo.targets=[k_proj]'; to discard it" in line
