"""Threads go by what the container may use, not by what the machine has."""

import os
from pathlib import Path

import pytest

from gpu_worker.usable_cores import quota, usable_cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("max 100000", None)],
    ids=["two cores", "two and a half", "half a core", "no limit"],
)
def test_quota_of_version_2(tmp_path: Path, text: str, cores: int | None):
    (tmp_path / "cpu.max").write_text(f"{text}\n")
    assert quota(tmp_path) == cores


@pytest.mark.parametrize(("limit", "cores"), [(400_000, 4), (-1, None)], ids=["four cores", "no limit"])
def test_quota_of_version_1(tmp_path: Path, limit: int, cores: int | None):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(f"{limit}\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert quota(tmp_path) == cores


def test_a_machine_without_control_groups_has_no_quota(tmp_path: Path):
    assert quota(tmp_path) is None


def test_never_more_than_the_process_may_use():
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
