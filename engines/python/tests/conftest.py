"""What the tests share: devices, inputs, the formula in double, and the comparison."""

import os
import sys

import pytest
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]  # tools.py; flashmla_package.py

HAS_CUDA = torch.cuda.is_available()


def pytest_collection_modifyitems(items):
    missing = pytest.mark.skip(reason="not run here: no CUDA device")
    for item in items:
        if "gpu" in item.keywords and not HAS_CUDA:
            item.add_marker(missing)


def pytest_terminal_summary(terminalreporter):
    left_out = [report for report in terminalreporter.stats.get("skipped", []) if "no CUDA device" in str(report.longrepr)]
    if left_out:
        terminalreporter.write_line(f"GPU tests not run here (no CUDA device): {len(left_out)}")


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request):
    """Every device kind that a test is for."""
    return torch.device(request.param)
