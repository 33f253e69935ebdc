"""Stage export: write what other software loads: both artifacts as PEFT folders and, where asked for, merged into the base.

reads    artifacts/base, both artifacts
writes   artifacts/export/policy/ and reward/, with a model card each; merged_policy/ and merged_reward/; export.json, the record of them
refuses  artifacts of another kind or another base; merging a reward model whose architecture has no classifier in transformers
"""

import shutil
from dataclasses import dataclass
from typing import Any

from stages.core import layout, runner
from stages.core.runner import Document
from stages.core.settings.export import Export
from stages.core.settings.runtime import Runtime
from stages.files import artifacts, base_record, model_card, outputs, peft_folder
from stages.files.artifacts import Artifact
from stages.files.base_record import BaseRecord

RECORD = layout.EXPORT / "export.json"
MERGED = ("merged_policy", "merged_reward")


@dataclass(frozen=True)
class Params:
    """The sections that this stage reads."""

    export: Export
    runtime: Runtime


def main(params: Params) -> Document:
    """Checks both artifacts against the base and writes the folders, and last the record."""
    outputs.make_ready(RECORD)
    base = base_record.read_base()
    policy = artifacts.read(layout.POLICY, artifacts.ADAPTER)
    reward = artifacts.read(layout.REWARD, artifacts.REWARD)
    for path, artifact in ((layout.POLICY, policy), (layout.REWARD, reward)):
        artifacts.require_base(path, artifact, base)
    record: dict[str, Any] = {
        "base_fingerprint": base.fingerprint,
        "policy": peft_folder.write_policy(layout.EXPORT / "policy", policy, base).as_posix(),
        "reward": peft_folder.write_reward(layout.EXPORT / "reward", reward, base).as_posix(),
    }
    for name in MERGED:
        shutil.rmtree(layout.EXPORT / name, ignore_errors=True)
    if params.export.merged:
        record |= {"precision": base.precision, **merged(policy, reward, base, params.runtime)}
    outputs.write_json(RECORD, record)
    return Document(layout.EXPORT, record)


def merged(policy: Artifact, reward: Artifact, base: BaseRecord, runtime: Runtime) -> dict[str, Any]:
    """Writes both merged checkpoints with their model cards; says where they are and what merging changed."""
    from stages.model import checkpoint, device, merging

    found = checkpoint.find(base)
    model = checkpoint.load_weights(found, device.prepare(runtime))
    of_policy = merging.write_policy(found, model, policy, layout.EXPORT / MERGED[0])
    of_reward = merging.write_reward(found, model, reward, layout.EXPORT / MERGED[1])
    cards = (
        model_card.policy(policy, base, of_policy.largest_difference),
        model_card.reward(reward, base, of_reward.largest_difference, merging.pad_token(found)),
    )
    for one, card in zip((of_policy, of_reward), cards, strict=True):
        outputs.write_bytes(one.folder / model_card.NAME, card)
    return {
        name: {"folder": one.folder.as_posix(), "largest_difference": one.largest_difference}
        for name, one in zip(MERGED, (of_policy, of_reward), strict=True)
    }


if __name__ == "__main__":
    runner.run("export", Params, main)
