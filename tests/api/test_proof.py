"""docs/proof.md tells where each fault is tried: the files and tests it names are there."""

import os
import re

from queen import ROOT


def test_every_test_that_is_named_exists():
    named = 0
    with open(os.path.join(ROOT, "docs", "proof.md"), encoding="utf-8") as file:
        rows = [line for line in file if line.startswith("| ")]
    for row in rows:
        text = None
        for name in re.findall(r"`([^`]+)`", row):
            if name.startswith(("tests/", "bench/")):
                path = os.path.join(ROOT, name)
                assert os.path.exists(path), name
                if os.path.isfile(path):
                    with open(path, encoding="utf-8") as file:
                        text = file.read()
            elif name.startswith("test_"):
                assert text is not None and "def %s(" % name in text, (row[:10], name)
                named += 1
    assert named > 50
