"""Section `export`: what is written for other software beside the adapters."""

from dataclasses import dataclass

from stages.core.settings.schema import setting


@dataclass(frozen=True)
class Export:
    """What the export stage is set to."""

    merged: bool = setting()
    """Whether the policy and the reward model are also written as whole checkpoints, the adapters merged into the base."""
