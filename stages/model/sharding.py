"""A frozen base whose layers are spread over the processes of a stage, for one that does not fit a device (FSDP2, torch's fully_shard).

A layer's weights are gathered from all processes while it runs, and let go after it. The embedding, the final norm and the
vocabulary's rows, which the passes read by themselves, are in every process. Adapters are added later, and are too.
"""

from itertools import chain

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from stages.model.layers import stack


def spread(model: PreTrainedModel, device: torch.device) -> None:
    """Leaves this process its part of every layer, on the device, and all else whole. All processes call it, having met before."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    layers = stack(model)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    whole = {parameter for parameter in model.parameters() if not isinstance(parameter, DTensor)}
    fully_shard(model.base_model, mesh=mesh, ignored_params=whole)
    for tensor in chain(whole, model.buffers()):
        tensor.data = tensor.data.to(device)
