"""What each onnxruntime release accepts: the highest opset and IR version that it loads."""

from __future__ import annotations

import dataclasses
import re

from ort_castlike._errors import TargetError

__all__ = ["NEWEST", "OLDEST", "TARGETS", "Target", "resolve_target"]


@dataclasses.dataclass(frozen=True, order=True)
class Target:
    """A minor release of onnxruntime.

    Attributes:
        release: (major, minor).
        opset: Highest version of the ai.onnx operator set that it loads.
        ir_version: Highest IR version that it loads.
        two_bit_slowdown: How many times as long a com.microsoft::MatMulNBits of 2 bits takes as the same layer of 4
            bits (2048 x 2048, block 128, batch 1, packed zero points); None where it is refused.
    """

    release: tuple[int, int]
    opset: int
    ir_version: int
    two_bit_slowdown: float | None = None

    def __str__(self) -> str:
        return f"{self.release[0]}.{self.release[1]}"


# Each row was probed by loading models stamped with one version after another.
TARGETS: tuple[Target, ...] = (
    Target((1, 20), opset=21, ir_version=10),
    Target((1, 21), opset=22, ir_version=10),
    Target((1, 22), opset=22, ir_version=10),
    Target((1, 23), opset=23, ir_version=11),
    Target((1, 24), opset=25, ir_version=13),
    Target((1, 25), opset=26, ir_version=13),
    Target((1, 26), opset=26, ir_version=13),
    Target((1, 27), opset=26, ir_version=13, two_bit_slowdown=34),
    Target((1, 28), opset=26, ir_version=13, two_bit_slowdown=34),
    Target((1, 29), opset=26, ir_version=13, two_bit_slowdown=34),
    Target((1, 30), opset=26, ir_version=13, two_bit_slowdown=34),
    Target((1, 31), opset=26, ir_version=13, two_bit_slowdown=33),
    Target((1, 32), opset=28, ir_version=14, two_bit_slowdown=33),
)
OLDEST = TARGETS[0]
NEWEST = TARGETS[-1]

_RELEASE = re.compile(r"(\d+)\.(\d+)(\..*)?")


def resolve_target(target: str | None) -> Target:
    """The row for a release named "1.20" or "1.20.1"; None is the installed onnxruntime.

    A release newer than the newest row is taken to accept what that row accepts.

    Raises:
        TargetError: ``target`` is no release number, or older than the oldest supported release.
    """
    if target is None:
        import onnxruntime

        target = onnxruntime.__version__
    match = _RELEASE.fullmatch(target) if isinstance(target, str) else None
    if match is None:
        raise TargetError(f"target {target!r} is no onnxruntime release; give one like '1.20', or None")
    release = (int(match[1]), int(match[2]))
    if release < OLDEST.release:
        raise TargetError(
            f"onnxruntime {target} is not supported; the oldest supported release is {OLDEST}: "
            f"install onnxruntime>={OLDEST}, or name a later target"
        )
    return max(row for row in TARGETS if row.release <= release)
