"""What each onnxruntime release accepts: the highest opset and IR version that it loads."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

from ort_castlike._errors import TargetError

__all__ = [
    "LONGEST_FUSED_BLOCK",
    "NEWEST",
    "OLDEST",
    "TARGETS",
    "Target",
    "TwoBitSlowdown",
    "newer_than_known",
    "resolve_target",
]


class TwoBitSlowdown(NamedTuple):
    """How many times as long a 2-bit layer of com.microsoft takes as what the rewriter makes of it.

    None where the release refuses it. ``benchmarks/matmul_nbits.py --table`` measures it (2048 x 2048, one row).

    Attributes:
        none: MatMulNBits without zero points.
        packed: MatMulNBits with packed zero points.
        floats: MatMulNBits with float zero points that are integers, halves or quarters.
        other_floats: MatMulNBits with any others, which the 4-bit layer has to keep as they are.
        gather: GatherBlockQuantized.
        float16: Whether a MatMulNBits without float zero points takes float16.
        int8: Block sizes for which there is a kernel of its own where a MatMulNBits without float zero points allows
            int8 arithmetic (accuracy_level 4), and how many times as long that takes.
    """

    none: float | None = None
    packed: float | None = None
    floats: float | None = None
    other_floats: float | None = None
    gather: float | None = None
    float16: bool = False
    int8: tuple[tuple[int, float], ...] = ()

    def of(self, form: str, *, is_float16: bool = False, int8_block: int | None = None) -> float | None:
        """The slowdown of a layer.

        Args:
            form: "none", "packed", "floats", "other_floats" or "gather".
            is_float16: Whether it takes float16.
            int8_block: Its block size where it allows int8 arithmetic.
        """
        slowdown: float | None = getattr(self, form)
        if form not in ("none", "packed"):
            return slowdown
        if is_float16 and not self.float16:
            return None
        return dict(self.int8).get(int8_block or 0, slowdown)


@dataclasses.dataclass(frozen=True, order=True)
class Target:
    """A minor release of onnxruntime.

    Attributes:
        release: (major, minor).
        opset: Highest version of the ai.onnx operator set that it loads.
        ir_version: Highest IR version that it loads.
        two_bit_slowdown: How it does on 2-bit layers of com.microsoft.
    """

    release: tuple[int, int]
    opset: int
    ir_version: int
    two_bit_slowdown: TwoBitSlowdown = TwoBitSlowdown()  # noqa: RUF009  it is immutable

    def __str__(self) -> str:
        return f"{self.release[0]}.{self.release[1]}"


_SINCE_1_24 = TwoBitSlowdown(none=24, packed=29)
_SINCE_1_27 = TwoBitSlowdown(none=29, packed=28, floats=13, other_floats=0.75, gather=1)
_SINCE_1_28 = TwoBitSlowdown(
    none=40, packed=45, floats=15, other_floats=0.6, gather=1, float16=True, int8=((32, 1.3), (64, 0.98), (128, 0.9))
)
_SINCE_1_30 = TwoBitSlowdown(
    none=27, packed=40, floats=11, other_floats=0.45, gather=1, float16=True, int8=((32, 1.4), (64, 0.91), (128, 0.81))
)

# Each row was probed by loading models stamped with one version after another.
TARGETS: tuple[Target, ...] = (
    Target((1, 20), opset=21, ir_version=10),
    Target((1, 21), opset=22, ir_version=10),
    Target((1, 22), opset=22, ir_version=10),
    Target((1, 23), opset=23, ir_version=11),
    Target((1, 24), opset=25, ir_version=13, two_bit_slowdown=_SINCE_1_24),
    Target((1, 25), opset=26, ir_version=13, two_bit_slowdown=_SINCE_1_24),
    Target((1, 26), opset=26, ir_version=13, two_bit_slowdown=_SINCE_1_24),
    Target((1, 27), opset=26, ir_version=13, two_bit_slowdown=_SINCE_1_27),
    Target((1, 28), opset=26, ir_version=13, two_bit_slowdown=_SINCE_1_28),
    Target((1, 29), opset=26, ir_version=13, two_bit_slowdown=_SINCE_1_28),
    Target((1, 30), opset=26, ir_version=13, two_bit_slowdown=_SINCE_1_30),
    Target((1, 31), opset=26, ir_version=13, two_bit_slowdown=_SINCE_1_30),
    Target((1, 32), opset=28, ir_version=14, two_bit_slowdown=_SINCE_1_30),
)
# Longer blocks of 4-bit weights in front of a MatMul give garbage on 1.20 to 1.25 and do not load on 1.27 to 1.29.
LONGEST_FUSED_BLOCK = 256

OLDEST = TARGETS[0]
NEWEST = TARGETS[-1]

# A minor version of three digits is a patch version with a dot lost.
_RELEASE = re.compile(r"(\d)\.(\d{1,2})(\.\d+)*((a|b|rc)\d+)?(\.(dev|post)\d+)?(\+[\w.]+)?", re.ASCII)


def resolve_target(target: str | None) -> Target:
    """The row for a release named "1.20" or "1.20.1"; None is the installed onnxruntime.

    A release newer than the newest row is taken to accept what that row accepts (see ``newer_than_known``).

    Raises:
        TargetError: ``target`` is no release number, or older than the oldest supported release.
    """
    target = _installed() if target is None else target
    release = _release_of(target)
    if release < OLDEST.release:
        raise TargetError(
            f"onnxruntime {target} is not supported; the oldest supported release is {OLDEST}: "
            f"install onnxruntime>={OLDEST}, or name a later target"
        )
    return max(row for row in TARGETS if row.release <= release)


def newer_than_known(target: str | None) -> str | None:
    """What there is to say of a release that is newer than the newest row; None where it is not."""
    target = _installed() if target is None else target
    if _release_of(target) <= NEWEST.release:
        return None
    return f"onnxruntime {target} is newer than {NEWEST}, the newest known; treated as that"


def _installed() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def _release_of(target: str) -> tuple[int, int]:
    match = _RELEASE.fullmatch(target) if isinstance(target, str) else None
    if match is None:
        raise TargetError(f"target {target!r} is no onnxruntime release; give a string like '1.20', or None")
    return int(match[1]), int(match[2])
