import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import faultlib  # noqa: E402


@pytest.fixture
def faults(tmp_path):
    return faultlib.Faults(str(tmp_path))
