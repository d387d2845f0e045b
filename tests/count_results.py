"""Adds up test results and prints the closing line of tests/run.sh.

    python3 count_results.py <runner>=<exit code>:<JUnit file> ...

Counts single test cases; those whose names begin with "gpu." are counted once more on a line of
their own, with the reason where they were skipped. What pytest skipped is listed by reason; a file
that is skipped as a whole counts as one case. A runner that left no results, or that failed
although no case of it did (a crash while collecting, a failed fixture), counts as one failure more,
so that a failure cannot get lost. Exit code 0 iff some test passed and none failed.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def outcome(case: ElementTree.Element) -> str:
    """passed, failed or skipped: pytest says so by child elements, CTest by an attribute too."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if case.get("status") == "notrun":
        # CTest: skipped on purpose, or not run because its program or fixture is missing.
        reason = "" if skipped is None else skipped.get("message", "")
        return "skipped" if reason.startswith("SKIP_") else "failed"
    if case.get("status") == "fail":
        return "failed"
    return "skipped" if skipped is not None or case.get("status") == "disabled" else "passed"


def skip_reason(case: ElementTree.Element) -> str:
    """The reason that a GoogleTest program printed before "[  SKIPPED ]"."""
    lines = case.findtext("system-out", "").splitlines()
    reasons = [line.strip() for line in lines if line.startswith("no GPU")]
    return reasons[0] if reasons else "no reason given"


def report_gpu(cases: list[ElementTree.Element]) -> None:
    """One line on the tests that need a GPU, where there are any."""
    gpu_cases = [case for case in cases if case.get("name", "").startswith("gpu.")]
    skipped = [case for case in gpu_cases if outcome(case) == "skipped"]
    if gpu_cases:
        reasons = sorted({skip_reason(case) for case in skipped})
        because = f" ({'; '.join(reasons)})" if reasons else ""
        print(f"GPU tests skipped: {len(skipped)} of {len(gpu_cases)}{because}")


def report_reasons(cases: list[ElementTree.Element]) -> None:
    """A line for each reason that pytest gives for skipped tests, the most frequent first."""
    reasons: Counter[str] = Counter()
    for case in cases:
        skipped = case.find("skipped")
        if skipped is not None and skipped.get("type", "").startswith("pytest"):
            reasons[skipped.get("message", "no reason given").splitlines()[0]] += 1
    for reason, count in reasons.most_common():
        print(f"  skipped {count}: {reason}")


def main() -> int:
    total: Counter[str] = Counter()
    for argument in sys.argv[1:]:
        runner, _, rest = argument.partition("=")
        code, _, path = rest.partition(":")
        counts: Counter[str] = Counter()
        try:
            cases = list(ElementTree.parse(Path(path)).getroot().iter("testcase"))
        except (OSError, ElementTree.ParseError) as error:
            print(f"{runner}: no results: {error}")
            cases = []
        for case in cases:
            result = outcome(case)
            counts[result] += 1
            if result == "failed":
                print(f"FAILED {runner}: {case.get('classname', '')} {case.get('name', '')}")
        report_gpu(cases)
        if not cases or (code != "0" and counts["failed"] == 0):
            print(f"FAILED {runner}: exit code {code} with {len(cases)} test cases")
            counts["failed"] += 1
        print(
            f"{runner}: {counts['passed']} passed, {counts['failed']} failed, "
            f"{counts['skipped']} skipped"
        )
        report_reasons(cases)
        total += counts
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 0 if total["passed"] > 0 and total["failed"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
