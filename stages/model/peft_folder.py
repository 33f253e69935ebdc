"""Adapters as PEFT's own folders: adapter_config.json and adapter_model.safetensors, as `PeftModel.from_pretrained` takes them."""

from pathlib import Path

import safetensors.numpy
from peft import LoraConfig, TaskType

from stages.files import outputs
from stages.files.artifacts import FACTOR, Artifact
from stages.files.base_record import BaseRecord

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def write_policy(folder: Path, policy: Artifact, base: BaseRecord) -> Path:
    """Writes the policy for AutoModelForCausalLM and returns the folder; the factors are the artifact's, byte for byte."""
    modules = sorted({factor["module"] for factor in map(FACTOR.fullmatch, policy.tensors) if factor})
    config = LoraConfig(
        r=policy.rank,
        lora_alpha=policy.alpha,
        lora_dropout=0.0,
        target_modules=modules,
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=base.folder or base.model,
        revision=base.commit,
        inference_mode=True,
        fan_in_fan_out=False,
    ).to_dict()
    config["target_modules"] = modules  # a set in PEFT's hands, whose order would change from run to run
    outputs.write_json(folder / CONFIG, {key: config[key] for key in sorted(config)})
    outputs.write_bytes(folder / WEIGHTS, safetensors.numpy.save(dict(policy.tensors), metadata={"format": "pt"}))
    return folder
