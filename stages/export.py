"""Stage export: write what other software loads; the policy as a PEFT folder.

reads    artifacts/base, both artifacts
writes   artifacts/export/policy/: adapter_config.json + adapter_model.safetensors
refuses  artifacts of another kind or another base
"""

from dataclasses import dataclass

from stages.core import layout, runner
from stages.core.runner import Document
from stages.core.settings.export import Export
from stages.files import artifacts, base_record, peft_folder


@dataclass(frozen=True)
class Params:
    """The sections that this stage reads."""

    export: Export


def main(params: Params) -> Document:
    """Checks both artifacts against the base and writes the folders."""
    base = base_record.read_base()
    policy = artifacts.read(layout.POLICY, artifacts.ADAPTER)
    reward = artifacts.read(layout.REWARD, artifacts.REWARD)
    for path, artifact in ((layout.POLICY, policy), (layout.REWARD, reward)):
        artifacts.require_base(path, artifact, base)
    folder = peft_folder.write_policy(layout.EXPORT / "policy", policy, base)
    return Document(layout.EXPORT, {"policy": folder.as_posix()})


if __name__ == "__main__":
    runner.run("export", Params, main)
