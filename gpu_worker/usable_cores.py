"""How many cores a worker may count on: those of the machine, of its affinity, and of its container's CPU quota."""

import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]

CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Physical cores that this process may use, at least 1."""
    allowed = len(os.sched_getaffinity(0))
    physical = psutil.cpu_count(logical=False) or allowed
    return max(1, min(allowed, physical, quota(CGROUP) or allowed))


def quota(cgroup: Path) -> int | None:
    """Whole cores that the control group at `cgroup` (version 2 or 1) gives in a period, at least 1; None: no limit."""
    match _limit(cgroup):
        case (limit, period) if limit > 0 and period > 0:
            return max(1, limit // period)
        case _:
            return None


def _limit(cgroup: Path) -> tuple[int, int] | None:
    """Microseconds of processor time in a period of so many microseconds."""
    both = cgroup / "cpu.max"
    if both.is_file():
        limit, period = both.read_text().split()
        return None if limit == "max" else (int(limit), int(period))
    limit_file, period_file = cgroup / "cpu/cpu.cfs_quota_us", cgroup / "cpu/cpu.cfs_period_us"
    if limit_file.is_file() and period_file.is_file():
        return int(limit_file.read_text()), int(period_file.read_text())
    return None
