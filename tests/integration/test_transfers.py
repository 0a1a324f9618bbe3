"""Roles that are killed or frozen while KV is under way: tests/multi_gpu/cluster_check.py on CPU nodes."""
import sys

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "tests/multi_gpu"))
import cluster_check  # noqa: E402


@pytest.mark.timeout(900)
@pytest.mark.parametrize("hit", cluster_check.FAULTS, ids="-".join)
def test_a_fault_in_mid_transfer_costs_no_answer(hit, tmp_path):
    options = cluster_check.parse(["--devices", "cpu,cpu"])
    checker = cluster_check.Checker(within=850)
    model = cluster_check.named_model("chat-6m", tmp_path)
    cluster_check.faults(options, checker, tmp_path, model, "ucx", [hit])
    assert checker.passed and not checker.failures
