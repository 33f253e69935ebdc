"""Adapters as PEFT's own folders: adapter_config.json and adapter_model.safetensors, as `PeftModel.from_pretrained` takes them.

Written from the layout that PEFT documents (huggingface.co/docs/peft, "PEFT checkpoint format") rather than through PEFT,
whose import costs more than everything else that export does; a test loads the folder with PEFT itself.
"""

from pathlib import Path
from typing import Any

import safetensors.numpy

from stages.files import outputs
from stages.files.artifacts import FACTOR, Artifact
from stages.files.base_record import BaseRecord

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def write_policy(folder: Path, policy: Artifact, base: BaseRecord) -> Path:
    """Writes the policy for AutoModelForCausalLM and returns the folder; the factors are the artifact's, byte for byte."""
    config: dict[str, Any] = {
        "base_model_name_or_path": base.folder or base.model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": policy.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": policy.rank,
        "revision": base.commit,
        "target_modules": sorted({factor["module"] for factor in map(FACTOR.fullmatch, policy.tensors) if factor}),
        "task_type": "CAUSAL_LM",
    }
    with outputs.together():
        outputs.write_json(folder / CONFIG, config)
        outputs.write_bytes(folder / WEIGHTS, safetensors.numpy.save(dict(policy.tensors), metadata={"format": "pt"}))
    return folder
