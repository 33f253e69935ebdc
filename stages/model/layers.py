"""Where a model's decoder layers are."""

from torch import nn
from transformers import PreTrainedModel

from stages.core.errors import TrainingError


def stack_name(model: PreTrainedModel) -> str:
    """The name of the list of decoder layers; raises TrainingError where there is none."""
    depth = model.config.get_text_config(decoder=True).num_hidden_layers
    found = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == depth]
    if not found:
        raise TrainingError(f"base.model: no list of {depth} decoder layers was found in {type(model).__name__}, so nothing can be adapted")
    return min(found, key=len)


def stack(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers; raises TrainingError where there is none."""
    found = model.get_submodule(stack_name(model))
    assert isinstance(found, nn.ModuleList)
    return found
