"""From a step's arrays to tensors on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.attention.backend import GroupInputs, StepInputs
from octavo.runner.inputs import GroupArrays, Ints, StepArrays


def step_tensors(arrays: StepArrays, device: torch.device) -> StepInputs:
    """Return the same step as tensors; on the CPU they share the arrays' memory."""

    def put(values: Ints) -> Tensor:
        return torch.from_numpy(values).to(device)

    def group(arrays: GroupArrays) -> GroupInputs:
        return GroupInputs(
            tables=put(arrays.tables),
            table_starts=put(arrays.table_starts),
            blocks=put(arrays.blocks),
            offsets=put(arrays.offsets),
        )

    return StepInputs(
        starts=arrays.starts,
        lengths=arrays.lengths,
        tokens=put(arrays.tokens),
        positions=put(arrays.positions),
        groups=tuple(map(group, arrays.groups)),
        sample_rows=put(arrays.sample_rows),
    )
