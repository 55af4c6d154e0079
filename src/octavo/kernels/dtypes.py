"""What the contract's names of number formats are in torch."""

from __future__ import annotations

import torch

TORCH_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""The torch dtype of each dtype that weights and KV may have."""
