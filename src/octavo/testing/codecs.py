"""What every KV codec promises, as a suite that out-of-tree codecs can run too."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.kernels.dtypes import TORCH_DTYPES
from octavo.pages.codec import KVCodec

HEAD_DIMS = (2, 6, 16, 64, 80, 128)
MAGNITUDES = (1e-30, 1e-6, 1e-3, 1.0, 50.0)
"""Largest number of a vector; the codec's own limit is tried too."""

_DRIFT = 1 / 16
"""Of the bound: how far a second writing may move what was read."""


def check_codec(make: Callable[[], KVCodec], *, device: str = "cpu") -> None:
    """Assert what `KVCodec` promises, over head sizes, shapes, strides, dtypes and magnitudes.

    Bytes as the format says; errors within the codec's own bound; zeros and what it is exact for
    kept bit for bit; a vector's bytes depend on its numbers alone; what is read and written again
    stays; numbers that are not finite do not come back as if they were.
    """
    codec = make()
    for head_dim in HEAD_DIMS:
        for dtype in TORCH_DTYPES:
            case = _Case(codec, head_dim, dtype, device)
            case.check_bytes()
            case.check_errors()
            case.check_zeros()
            case.check_exactness()
            case.check_that_vectors_are_alone()
            case.check_strides()
            case.check_broken_numbers()


class _Case:
    """One codec, one head size, one dtype of what is stored."""

    def __init__(self, codec: KVCodec, head_dim: int, dtype: str, device: str) -> None:
        self.codec = codec
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = device
        self.name = f"{codec.format.name}, heads of {head_dim}, {dtype}"

    def draw(self, *shape: int, magnitude: float = 1.0) -> Tensor:
        """Draw vectors whose largest number is about so large."""
        source = torch.Generator().manual_seed(self.head_dim)
        x = torch.randn(*shape, self.head_dim, generator=source)
        x = x / x.abs().amax(dim=-1, keepdim=True) * magnitude
        return x.to(TORCH_DTYPES[self.dtype]).to(self.device)

    def magnitudes(self) -> list[float]:
        """List what both the codec and the dtype can hold."""
        # The last bit of the limit may be lost in drawing.
        limit = min(self.codec.largest, torch.finfo(TORCH_DTYPES[self.dtype]).max) * 0.98
        return [*(size for size in MAGNITUDES if size < limit), limit]

    def read_back(self, x: Tensor) -> Tensor:
        return self.codec.decode(self.codec.encode(x), self.head_dim)

    def check_bytes(self) -> None:
        kept, width = self.codec.stored_dtype, self.codec.format.vector_bytes(self.head_dim)
        for shape in ((), (3,), (5, 2), (0, 2), (2, 1, 3)):
            x = self.draw(*shape)
            before = x.clone()
            stored = self.codec.encode(x)
            assert stored.dtype == kept, f"{self.name}: encode gives {stored.dtype}, not {kept}"
            assert stored.device == x.device, f"{self.name}: encode changes the device"
            bytes_of = stored.shape[-1] * kept.itemsize
            assert stored.shape[:-1] == shape, f"{self.name}: {shape} became {stored.shape}"
            assert bytes_of == width, f"{self.name}: {bytes_of} bytes a vector, not {width}"
            back = self.codec.decode(stored, self.head_dim)
            assert back.dtype == torch.float32, f"{self.name}: decode gives {back.dtype}"
            assert back.shape == x.shape, f"{self.name}: {x.shape} came back as {back.shape}"
            assert back.device == x.device, f"{self.name}: decode changes the device"
            assert torch.equal(x, before), f"{self.name}: encode changes its input"

    def check_errors(self) -> None:
        for magnitude in self.magnitudes():
            x = self.draw(7, 2, magnitude=magnitude)
            # One number towers above the others.
            x[0, 0, 1:] *= 1e-3
            where = f"{self.name}, numbers up to {magnitude:g}"
            bound = self.codec.bound(x)
            assert (bound >= 0).all(), f"{where}: a negative bound"
            back = self.read_back(x)
            assert torch.isfinite(back).all(), f"{where}: comes back not finite"
            excess = ((back - x.float()).abs() - bound).max().item()
            assert excess <= 0, f"{where}: an error is {excess:g} above its bound"
            again = (self.read_back(back) - back).abs()
            drift = (again - _DRIFT * self.codec.bound(back)).max().item()
            assert drift <= 0, f"{where}: writing what was read moves it by {again.max():g}"

    def check_zeros(self) -> None:
        x = torch.zeros(3, self.head_dim, dtype=TORCH_DTYPES[self.dtype], device=self.device)
        assert not self.read_back(x).any(), f"{self.name}: zeros come back as something else"

    def check_exactness(self) -> None:
        if self.dtype not in self.codec.exact_for:
            return
        for magnitude in self.magnitudes():
            x = self.draw(9, magnitude=magnitude)
            assert torch.equal(self.read_back(x), x.float()), (
                f"{self.name}: exact_for names the dtype, but numbers up to {magnitude:g} change"
            )

    def check_that_vectors_are_alone(self) -> None:
        sizes = torch.linspace(0.01, 1.0, 33, device=self.device)[:, None, None]
        x = (self.draw(33, 3) * sizes).to(TORCH_DTYPES[self.dtype])
        together = self.codec.encode(x)
        for row in (0, 16, 32):
            alone = self.codec.encode(x[row, 1:2])
            assert _same_bytes(alone[0], together[row, 1]), (
                f"{self.name}: a vector's bytes depend on its neighbours"
            )
            back = self.codec.decode(together, self.head_dim)[row, 1]
            assert torch.equal(self.codec.decode(alone, self.head_dim)[0], back), (
                f"{self.name}: what a vector reads as depends on its neighbours"
            )

    def check_strides(self) -> None:
        x = self.draw(4, 3)
        plain = self.codec.encode(x)
        other = self.draw(4, 3).transpose(0, 1).contiguous().transpose(0, 1)
        wide = torch.cat((x, x), dim=-1)[..., : self.head_dim]
        for strided in (other, wide):
            assert _same_bytes(self.codec.encode(strided), plain), (
                f"{self.name}: strides change the bytes"
            )
        room = plain.new_zeros(4, 5, *plain.shape[1:])
        room[:, 2] = plain
        assert torch.equal(
            self.codec.decode(room[:, 2], self.head_dim), self.codec.decode(plain, self.head_dim)
        ), f"{self.name}: strides change what is read"

    def check_broken_numbers(self) -> None:
        for bad in (float("nan"), float("inf")):
            x = self.draw(2)
            x[1, -1] = bad
            back = self.read_back(x)
            assert torch.isfinite(back[0]).all(), f"{self.name}: {bad} spoils another vector"
            assert not torch.isfinite(back[1]).all(), f"{self.name}: {bad} comes back finite"


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
