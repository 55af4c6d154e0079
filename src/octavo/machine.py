"""What this machine is, as far as the standard library can tell."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

import msgspec

_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)

CPU_LIMIT = "/sys/fs/cgroup/cpu.max"
"""Where a container's share of the processor is written: microseconds, and of how many."""


class Machine(msgspec.Struct, frozen=True):
    """Where a result was made."""

    cpu: str
    cores: int
    memory_bytes: int
    gpus: list[str]


def this_machine() -> Machine:
    """Describe the machine; GPUs are those that the NVIDIA driver lists."""
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return Machine(
        _cpu_name(), available_cores(), _total_memory(), [_gpu_name(path) for path in gpus]
    )


def free_memory_bytes() -> int:
    """Bytes that can be allocated now without swapping, a container's limit included."""
    free = _meminfo("MemAvailable") or _total_memory() // 2
    for limit_path, usage_path in _CGROUP_LIMITS:
        limit, usage = _read_int(limit_path), _read_int(usage_path)
        if limit is not None and usage is not None:
            # Files that were read count as used, though they go when memory is asked for.
            usage -= _inactive_file_bytes(Path(usage_path).parent)
            free = min(free, max(0, limit - usage))
    return free


def _inactive_file_bytes(group: Path) -> int:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split()[:2] for line in lines if len(line.split()) >= 2)
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))


def available_cores() -> int:
    """Cores that this process may use, a container's limit included."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    quota = _cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _cpu_quota() -> float | None:
    """Return the cores' worth of time that a container gets; None: no limit."""
    try:
        quota, period = Path(CPU_LIMIT).read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    used = [_read_int(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period")]
    quota_us, period_us = used
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _cpu_name() -> str:
    """Name the processor; some clouds hide its model, so that family and number go with it."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        first = ""
    pairs = [line.split(":", 1) for line in first.splitlines() if ":" in line]
    facts = {key.strip(): value.strip() for key, value in pairs}
    name = facts.get("model name")
    if name is None:
        return platform.processor() or platform.machine()
    if "cpu family" not in facts or "model" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts['model']})"


def _total_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30  # nothing to ask on this platform; small enough to be safe


def _meminfo(field: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _read_int(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _gpu_name(path: Path) -> str:
    for line in path.read_text().splitlines():
        if line.startswith("Model:"):
            return line.partition(":")[2].strip()
    return "unknown"
