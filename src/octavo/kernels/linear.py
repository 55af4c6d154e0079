"""Matrix products of rows with weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows by a matrix: [rows, in] @ [out, in]ᵀ → [rows, out].

    On a CPU in float32 this is oneDNN: torch's default there repacks the matrix at every call,
    which takes twice the time of a decode step and gives other bits for 5 to 7 rows than for 8.
    """
    if x.dtype is torch.float32 and x.device.type == "cpu" and _has_onednn():
        # One row alone takes another path, slower and with other bits: compute it twice.
        rows = x if x.shape[0] != 1 else x.repeat(2, 1)
        product = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
        return product[: x.shape[0]]
    return F.linear(x, weight)


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
