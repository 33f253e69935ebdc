"""Adapters as PEFT's own folders: adapter_config.json and adapter_model.safetensors, as `PeftModel.from_pretrained` takes them.

Written from the layout that PEFT documents (huggingface.co/docs/peft, "PEFT checkpoint format") rather than through PEFT,
whose import costs more than everything else that export does; a test loads the folders with PEFT itself.
"""

from pathlib import Path
from typing import Any

import safetensors.numpy

from stages.files import model_card, outputs
from stages.files.artifacts import FACTOR, HEAD, Artifact
from stages.files.base_record import BaseRecord

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CLASSIFIER = "score"
"""What transformers calls the head of a decoder's sequence classifier."""
CLASSIFIER_WEIGHT = f"base_model.model.{CLASSIFIER}.weight"


def write_policy(folder: Path, policy: Artifact, base: BaseRecord) -> Path:
    """Writes the policy for AutoModelForCausalLM and returns the folder; the factors are the artifact's, byte for byte."""
    return _write(folder, policy, base, {"task_type": "CAUSAL_LM"}, model_card.policy(policy, base, None))


def write_reward(folder: Path, reward: Artifact, base: BaseRecord) -> Path:
    """Writes the reward model for AutoModelForSequenceClassification with num_labels 1; the head is its `score`, and trained whole."""
    more = {"task_type": "SEQ_CLS", "modules_to_save": [CLASSIFIER]}
    return _write(folder, reward, base, more, model_card.reward(reward, base, None, None))


def _write(folder: Path, artifact: Artifact, base: BaseRecord, more: dict[str, Any], card: bytes) -> Path:
    config: dict[str, Any] = {
        "base_model_name_or_path": base.folder or base.model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": artifact.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": artifact.rank,
        "revision": base.commit,
        "target_modules": sorted({factor["module"] for factor in map(FACTOR.fullmatch, artifact.tensors) if factor}),
        **more,
    }
    tensors = {CLASSIFIER_WEIGHT if name == HEAD else name: tensor for name, tensor in artifact.tensors.items()}
    with outputs.together():
        outputs.write_json(folder / CONFIG, config)
        outputs.write_bytes(folder / WEIGHTS, safetensors.numpy.save(tensors, metadata={"format": "pt"}))
        outputs.write_bytes(folder / model_card.NAME, card)
    return folder
