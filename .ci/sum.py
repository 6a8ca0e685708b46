"""Adds up the results of every runner of ./dev test and ends with one line: `N passed, N failed`.

usage: sum.py RESULTS_DIR [FAILED_STEP...]

Reads the JUnit files of ctest and pytest and the exit codes of the fuzzers (fuzz_*.code). A cmocka
executable counts with each of its test functions. A step that failed without one failed test in
its file (a build, a crashed runner, a sanitizer report) counts as one failure. Exit code 0 only
when nothing failed.
"""

import glob
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

CMOCKA_PASSED = re.compile(r"^\[  PASSED  \] (\d+) test\(s\)\.", re.M)
CMOCKA_FAILED = re.compile(r"^\[  FAILED  \] (?:tests: )?(\d+) test\(s\)", re.M)


def case_counts(case):
    """(passed, failed, skipped) of one <testcase>; ctest's output of a cmocka executable is counted by function."""
    if case.find("skipped") is not None:
        return 0, 0, 1
    bad = case.find("failure") is not None or case.find("error") is not None
    output = case.findtext("system-out") or ""
    passed = sum(int(n) for n in CMOCKA_PASSED.findall(output))
    failed = sum(int(n) for n in CMOCKA_FAILED.findall(output))
    if not passed and not failed:
        passed = 0 if bad else 1
    if bad and not failed:
        failed = 1
    return passed, failed, 0


def file_counts(path):
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        p, f, s = case_counts(case)
        passed, failed, skipped = passed + p, failed + f, skipped + s
        if f:
            print("failed: %s %s" % (os.path.basename(path)[:-4], "::".join(
                filter(None, (case.get("classname"), case.get("name"))))))
    return passed, failed, skipped


def main():
    results, failed_steps = sys.argv[1], sys.argv[2:]
    total_passed = total_failed = total_skipped = 0
    blamed = set()
    for path in sorted(glob.glob(os.path.join(results, "*.xml"))):
        step = os.path.basename(path)[:-4]
        try:
            passed, failed, skipped = file_counts(path)
        except ElementTree.ParseError:
            passed, failed, skipped = 0, 0, 0
        print("%-28s %5d passed %5d failed %5d skipped" % (step, passed, failed, skipped))
        if failed:
            blamed.add(step)
        total_passed, total_failed, total_skipped = total_passed + passed, total_failed + failed, total_skipped + skipped
    for path in sorted(glob.glob(os.path.join(results, "fuzz_*.code"))):
        with open(path) as file:
            good = file.read().strip() == "0"
        if not good:
            print("failed: " + os.path.basename(path)[:-5])
            blamed.add("fuzz")
        total_passed, total_failed = total_passed + good, total_failed + (not good)
    for step in failed_steps:
        if step not in blamed:
            print("failed: step " + step)
            total_failed += 1
    print("%d passed, %d failed" % (total_passed, total_failed))
    return 1 if total_failed or not total_passed else 0


if __name__ == "__main__":
    sys.exit(main())
