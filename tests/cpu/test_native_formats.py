"""In which arithmetic weights are multiplied: their type and the setting decide together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo import cpu
from octavo.runner import native_model
from octavo.testing.tiny import tiny_spec

_cpu = cpu.native()
if _cpu is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

from native_hand import StoredRandomWeights, answer, native_hand, words  # noqa: E402

# Of 8 bits or less: 8-bit activations if int8. Wider: never below the weights' own precision,
# unless bf16 is asked for.
FORMS = {
    "Q4_1": {"int8": "q4", "bf16": "bf16", "float32": "f32"},
    "Q5_1": {"int8": "q5s", "bf16": "bf16", "float32": "f32"},
    "Q8_0": {"int8": "q8", "bf16": "bf16", "float32": "f32"},
    "BF16": {"int8": "bf16", "bf16": "bf16", "float32": "f32"},
    "F16": {"int8": "f16", "bf16": "bf16", "float32": "f16"},
    "F32": {"int8": "f32", "bf16": "bf16", "float32": "f32"},
}


class PackingSeen:
    """The extension, with the formats that are packed written down."""

    def __init__(self) -> None:
        self.formats: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(_cpu, name)

    def Packer(self, pool: Any) -> PackerSeen:  # noqa: N802 (a class of the extension)
        return PackerSeen(_cpu.Packer(pool), self.formats)


class PackerSeen:
    """One packer of it."""

    def __init__(self, packer: Any, formats: set[str]) -> None:
        self._packer, self._formats = packer, formats

    def add(self, *args: Any, **options: Any) -> Any:
        matrix = self._packer.add(*args, **options)
        self._formats.add(matrix.format)
        return matrix

    def run(self) -> None:
        self._packer.run()


class Widened(StoredRandomWeights):
    """The numbers of another type, stored as F32."""

    def stored_rows(self, name: str) -> tuple[str, np.ndarray]:
        return "F32", self.tensor(name).view(np.uint8)

    def tensor(self, name: str) -> np.ndarray:
        return StoredRandomWeights(self.spec, kind=self.kind).tensor(name)


def whole_rows() -> Any:
    return msgspec.structs.replace(tiny_spec(), intermediate_size=96)


@pytest.mark.parametrize("arithmetic", ["int8", "bf16", "float32"])
@pytest.mark.parametrize("kind", FORMS)
def test_a_type_and_an_arithmetic_give_a_format(kind, arithmetic, monkeypatch):
    seen = PackingSeen()
    monkeypatch.setattr(native_model, "require_native", lambda: seen)

    native_hand(StoredRandomWeights(whole_rows(), kind=kind), arithmetic=arithmetic)

    assert seen.formats == {FORMS[kind][arithmetic]}


def test_float16_weights_give_the_bits_of_the_same_numbers_in_float32():
    spec = whole_rows()
    prompt = words(spec, 40)

    narrow = answer(native_hand(StoredRandomWeights(spec, kind="F16")), prompt)
    wide = answer(native_hand(Widened(spec, kind="F16")), prompt)

    np.testing.assert_array_equal(narrow.numpy(), wide.numpy())
