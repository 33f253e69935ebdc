"""The base checkpoint: what is recorded of it, what is refused, and that only the one recorded is loaded."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, T5Config, T5ForConditionalGeneration

from stages.core.errors import BaseError
from stages.model import checkpoint
from tests import tiny

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A llama with a chat template."""
    return tiny.save(tmp_path / "base", words=tiny.tokenizer(begins=True, template=tiny.CHAT))


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **values}))


def test_the_record_says_what_lies_in_the_folder(folder: Path):
    record = tiny.record(folder, model="some/name", precision="bf16")
    digests = {key: value for key, value in record.as_json().items() if "sha256" in key or key == "fingerprint"}
    assert {key: value for key, value in record.as_json().items() if key not in digests} == {
        "model": "some/name",
        "revision": None,
        "commit": None,
        "gguf_file": None,
        "folder": folder.as_posix(),
        "trust_remote_code": False,
        "precision": "bf16",
        "chat_template": "applied",
        "model_type": "llama",
        "layers": 2,
        "hidden_size": 32,
        "vocabulary": 40,
        "positions": 64,
        # Embedding and output rows 2 * 40 * 32; each of 2 layers: q and o 2 * 32 * 32, k and v 2 * 32 * 16, three of 32 * 48,
        # two norms of 32; and the last norm of 32.
        "parameters": 2 * 40 * 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 32,
        "begin_token": tiny.IDS[tiny.BEGIN],
        "end_tokens": [tiny.IDS[tiny.END]],
    }
    assert all(len(digest) == 64 for digest in digests.values())


@pytest.mark.parametrize("kind", ["gpt2", "opt", "gpt_neox"])
def test_sizes_are_recorded_whatever_an_architecture_calls_them(tmp_path: Path, kind: str):
    record = tiny.record(tiny.save(tmp_path / "base", tiny.model(kind)))
    assert (record.model_type, record.layers, record.hidden_size, record.vocabulary, record.positions) == (kind, 2, 32, 40, 64)


def test_a_model_that_names_no_limit_of_positions_is_recorded_with_none(tmp_path: Path):
    saved = tiny.save(tmp_path, tiny.model("bloom"))
    config = {key: value for key, value in json.loads((saved / "config.json").read_bytes()).items() if key != "max_position_embeddings"}
    (saved / "config.json").write_text(json.dumps(config))
    assert tiny.record(saved).positions is None


@pytest.mark.parametrize(
    ("template", "setting", "recorded"),
    [(tiny.CHAT, "auto", "applied"), (None, "auto", "absent"), (tiny.CHAT, "off", "off"), (None, "off", "off")],
)
def test_the_template_is_applied_absent_or_off(tmp_path: Path, template: str | None, setting: str, recorded: str):
    saved = tiny.save(tmp_path / "base", words=tiny.tokenizer(template=template))
    assert tiny.record(saved, chat_template=setting).chat_template == recorded


def test_the_begin_token_is_the_one_that_the_tokenizer_itself_writes(tmp_path: Path):
    records = [tiny.record(tiny.save(tmp_path / str(begins), words=tiny.tokenizer(begins=begins))) for begins in (True, False)]
    assert [record.begin_token for record in records] == [tiny.IDS[tiny.BEGIN], None]


def test_end_tokens_are_those_of_tokenizer_configuration_and_generation_configuration_each_once(folder: Path):
    edit(folder / "config.json", eos_token_id=[3, 2])
    GenerationConfig(eos_token_id=[7, 3]).save_pretrained(folder)
    assert tiny.record(folder).end_tokens == [2, 3, 7]
    edit(folder / "config.json", eos_token_id=None)
    (folder / "generation_config.json").unlink()
    assert tiny.record(folder).end_tokens == [2]


def same_base(folder: Path) -> str:
    return tiny.record(folder).fingerprint


def test_the_fingerprint_stays_when_the_folder_moves_the_precision_changes_or_another_version_saves_it(folder: Path, tmp_path: Path):
    before = same_base(folder)
    assert tiny.record(folder, precision="bf16", model="other", chat_template="off").fingerprint == before
    moved = folder.rename(tmp_path / "elsewhere")
    assert same_base(moved) == before
    loaded = tiny.load(tiny.record(moved))
    loaded.model.save_pretrained(tmp_path / "again")
    loaded.tokenizer.save_pretrained(tmp_path / "again")
    edit(tmp_path / "again" / "config.json", transformers_version="4.0.0")
    edit(tmp_path / "again" / "generation_config.json", transformers_version="4.0.0")
    assert same_base(tmp_path / "again") == before


def change_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] += 1e-3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder: Path) -> None:
    edit(folder / "config.json", rms_norm_eps=1e-3)


def change_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"harsh"', '"hard"'))


def change_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(tiny.CHAT + "\n")


def change_ends(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[2, 9])


CHANGES = {
    "weights": change_weight,
    "config": change_config,
    "tokenizer": change_tokenizer,
    "template": change_template,
    "end tokens": change_ends,
}


@pytest.mark.parametrize("part", CHANGES)
def test_a_change_of_any_part_is_another_base_and_is_not_loaded_as_the_one_recorded(folder: Path, part: str):
    record = tiny.record(folder)
    tiny.load(record)
    CHANGES[part](folder)
    assert same_base(folder) != record.fingerprint
    with pytest.raises(BaseError) as caught:
        tiny.load(record)
    assert caught.value.lines() == [
        f"base.model: {folder} has changed since it was recorded ({part}); "
        "bring the old one back, or run `dvc repro -f base` to record the new one"
    ]


@pytest.mark.parametrize(("precision", "dtype"), [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_the_recorded_precision_is_what_the_weights_are_loaded_in(folder: Path, precision: str, dtype: torch.dtype):
    loaded = tiny.load(tiny.record(folder, precision=precision))
    stored = load_file(folder / "model.safetensors")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {dtype}
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, stored[name].to(dtype))


def test_the_loaded_model_is_frozen_in_evaluation_mode_and_has_its_own_tokenizer(folder: Path):
    model, words = tiny.load(tiny.record(folder))
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert words("the child").input_ids == [tiny.IDS[tiny.BEGIN], *tiny.ids("the child")]


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(BaseError) as caught:
        act()
    (line,) = caught.value.lines()
    return line


def test_an_encoder_decoder_is_refused(tmp_path: Path):
    config = T5Config(vocab_size=40, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    line = refused(lambda: tiny.record(tmp_path, model="t5"))
    assert line == "base.model: t5 is an encoder-decoder (t5); a decoder-only causal model is expected"


def test_a_model_without_an_end_token_is_refused(tmp_path: Path):
    words = tiny.tokenizer()
    words.eos_token = None
    tiny.save(tmp_path, tiny.model(eos_token_id=None), words)
    line = refused(lambda: tiny.record(tmp_path, model="endless"))
    assert line.startswith("base.model: endless names no end token in its tokenizer, configuration or generation configuration")


def test_several_chat_templates_are_refused_unless_they_are_off(tmp_path: Path):
    words = tiny.tokenizer()
    words.chat_template = {"default": tiny.CHAT, "tool_use": "tools"}
    tiny.save(tmp_path, words=words)
    line = refused(lambda: tiny.record(tmp_path))
    assert "carries several chat templates (default, tool_use); keep one" in line
    record = tiny.record(tmp_path, chat_template="off")
    assert record.chat_template == "off"
    tiny.load(record)


def test_pickle_weights_are_never_loaded(folder: Path):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "it has only pickle weights (pytorch_model.bin), which are never loaded; load it in transformers where" in refused(
        lambda: tiny.record(folder)
    )


def test_a_single_file_that_changed_beside_an_index_is_refused(folder: Path):
    """transformers loads the single file and not what the index names."""
    (folder / "model-1.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    names = dict.fromkeys(load_file(folder / "model.safetensors"), "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    record = tiny.record(folder)
    change_weight(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder).state_dict()["model.norm.weight"]
    assert torch.equal(loaded, load_file(folder / "model.safetensors")["model.norm.weight"])
    assert "has changed since it was recorded (weights)" in refused(lambda: tiny.load(record))


def test_code_that_changed_is_refused_where_it_may_run(folder: Path):
    (folder / "modeling.py").write_text("epsilon = 1e-6")
    records = [tiny.record(folder, trust_remote_code=trusted) for trusted in (False, True)]
    checkpoint.find(records[1])
    (folder / "modeling.py").write_text("epsilon = 5.0")
    checkpoint.find(records[0])
    assert "has changed since it was recorded (config)" in refused(lambda: checkpoint.find(records[1]))


def test_stored_weights_that_the_configuration_leaves_out_are_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    edit(folder / "config.json", num_hidden_layers=1)
    tiny.load(tiny.record(folder))
    assert (
        "base.model: LlamaForCausalLM does not use 9 of the stored weights (model.layers.1.input_layernorm.weight, "
        "model.layers.1.mlp.down_proj.weight, model.layers.1.mlp.gate_proj.weight); "
        "where they are layers, config.json names fewer than there are\n"
    ) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_hidden_layers": 0}, "has 0 decoder layers by its config.json; at least one is expected"),
        ({"eos_token_id": 40}, "ends with token 40, and its embedding has 40 rows; mend eos_token_id, or resize the embedding"),
        ({"transformers_weights": "other.safetensors"}, "names its own weight file (other.safetensors) in config.json"),
    ],
)
def test_a_configuration_that_says_what_cannot_be_is_refused_when_recorded(folder: Path, values: dict[str, Any], said: str):
    edit(folder / "config.json", **values)
    assert said in refused(lambda: tiny.record(folder))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (3, "the tokenizer's chat_template is 3; a text is expected"),
        ("a{% if %}", "its chat template is no Jinja: line 1: Expected an expression, got 'end of statement block'; mend it, or set"),
    ],
)
def test_a_template_that_is_none_is_refused_when_recorded(folder: Path, template: object, said: str):
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    edit(folder / "tokenizer_config.json", chat_template=template)
    assert said in refused(lambda: tiny.record(folder))


def test_a_template_that_refuses_one_lone_user_is_recorded(folder: Path):
    (folder / "chat_template.jinja").write_text("{{ raise_exception('two turns are expected') }}")
    assert tiny.record(folder).chat_template == "applied"


def test_a_precision_that_is_none_is_refused(folder: Path):
    assert "precision 'f8' is not what the base stage writes" in refused(
        lambda: checkpoint.find(dataclasses.replace(tiny.record(folder), precision="f8"))
    )


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_file_that_was_cut_off_is_refused_in_one_line_when_recorded_and_when_loaded(folder: Path, file: str):
    record = tiny.record(folder)
    cut(folder / file)
    assert str(folder) in refused(lambda: tiny.record(folder))
    assert str(folder) in refused(lambda: tiny.load(record))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_that_is_gone_is_refused_in_one_line_when_recorded_and_when_loaded(folder: Path, file: str):
    record = tiny.record(folder)
    (folder / file).unlink()
    assert str(folder) in refused(lambda: tiny.record(folder))
    assert str(folder) in refused(lambda: tiny.load(record))


def test_a_folder_that_is_gone_is_refused(folder: Path, tmp_path: Path):
    record = dataclasses.replace(tiny.record(folder), folder=(tmp_path / "gone").as_posix())
    line = refused(lambda: tiny.load(record))
    assert line == (
        f"base.model: {tmp_path / 'gone'}, where base.json found the checkpoint, is not there; bring it back or run `dvc repro -f base`"
    )


@pytest.mark.parametrize(
    "values", [{"model_type": "nonsense"}, {"hidden_size": "wide"}, {"num_attention_heads": 0}, {"hidden_size": 64}, {"rope_parameters": 3}]
)
def test_a_configuration_that_transformers_does_not_take_is_refused_in_one_line(folder: Path, values: dict[str, Any]):
    edit(folder / "config.json", **values)
    line = refused(lambda: tiny.load(tiny.record(folder)))
    assert line.startswith(f"base.model: {folder} cannot be loaded by transformers (")


def test_weights_that_a_checkpoint_lacks_are_not_made_up(folder: Path):
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"], tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert refused(lambda: tiny.load(tiny.record(folder))) == (
        f"base.model: {folder} lacks 2 of the weights of LlamaForCausalLM (lm_head.weight, model.layers.1.self_attn.q_proj.weight); "
        "a whole causal language model is expected"
    )


def test_output_rows_tied_to_the_embedding_are_no_weights_that_lack(tmp_path: Path):
    saved = tiny.save(tmp_path / "base", tiny.model(tie_word_embeddings=True))
    assert "lm_head.weight" not in load_file(saved / "model.safetensors")
    loaded = tiny.load(tiny.record(saved)).model
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_code_that_comes_with_a_checkpoint_does_not_run_unasked(folder: Path, tmp_path: Path):
    ran = tmp_path / "ran"
    code = [
        "from pathlib import Path",
        "from transformers import LlamaConfig",
        f"Path({str(ran)!r}).touch()",
        "class Own(LlamaConfig): ...",
    ]
    (folder / "own.py").write_text("\n".join(code))
    edit(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Own"})
    assert refused(lambda: tiny.record(folder)).endswith("; set base.trust_remote_code=true where you trust the code that comes with it")
    assert not ran.exists()


def test_the_oracles_of_these_tests_agree_on_what_is_a_model(folder: Path):
    assert AutoConfig.from_pretrained(folder).num_hidden_layers == 2
    assert (
        sum(parameter.numel() for parameter in AutoModelForCausalLM.from_pretrained(folder).parameters()) == tiny.record(folder).parameters
    )
