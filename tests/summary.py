#!/usr/bin/env python3
"""Adds up a test run: ctest's JUnit file of each folder, with GoogleTest's and pytest's own files in place of
ctest's one line for a whole program. Names every failure with the command that runs it again, and the reason of every skip. The
last line is the total.

usage: summary.py RESULTS-FOLDER
"""
import collections
import pathlib
import shlex
import sys
import xml.etree.ElementTree as ElementTree


class Totals:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = collections.Counter()

    def fail(self, name, again=""):
        self.failed.append((name, again))

    def skip(self, name, reason):
        self.skipped[(name, " ".join((reason or "no reason given").split())[:200])] += 1


def preset_of(folder):
    return next((preset for preset in ("asan-ubsan", "tsan") if folder.startswith(preset)), "release")


def run_again(folder, test, case=""):
    """The command that runs one ctest of a results folder again, or one case of it."""
    preset = preset_of(folder)
    # As test.sh has it for sanitizer builds.
    prefix = "" if preset == "release" else "UCX_MEM_MMAP_HOOK_MODE=none "
    if case and test == "integration":
        module, _, function = case.partition(".")
        return f"{prefix}TANDEM_TEST_BIN=$PWD/build/{preset}/bin TANDEM_SMOLLM2=$(scripts/fetch-smollm2.sh) " \
               f"tests/integration/run.sh {shlex.quote(f'tests/integration/{module}.py::{function}')}"
    if case:
        return f"{prefix}build/{preset}/tests/{test} --gtest_filter={shlex.quote(case)}"
    return f"{prefix}ctest --test-dir build/{preset} --output-on-failure -R '^{test}$'"


def read_cases(path):
    """(name, outcome, reason) of each case of a GoogleTest or pytest file."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname') or ''}.{case.get('name')}".lstrip(".")
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            yield name, "failed", ""
        elif skipped is not None or case.get("result") == "skipped":
            reason = "" if skipped is None else (skipped.get("message") or skipped.text)
            yield name, "skipped", reason
        elif case.get("status") == "notrun" or case.get("result") == "suppressed":
            yield name, "skipped", "disabled in the source"
        else:
            yield name, "passed", ""


def add_details(path, label, ctest_failed, totals):
    folder, test = label.split("/")
    failed_before = len(totals.failed)
    try:
        cases = list(read_cases(path))
    except ElementTree.ParseError:
        totals.fail(f"{label}: {path.name} is not readable (the program died while writing)",
                    run_again(folder, test))
        return
    for name, outcome, reason in cases:
        if outcome == "passed":
            totals.passed += 1
        elif outcome == "failed":
            totals.fail(f"{label}: {name}", run_again(folder, test, name))
        else:
            totals.skip(f"{label}: {name}", reason)
    if ctest_failed and len(totals.failed) == failed_before:
        totals.fail(f"{label}: ended badly after its last test (sanitizer report, crash or time-out)", run_again(folder, test))
    if not ctest_failed and not cases:
        totals.fail(f"{label}: ran no test", run_again(folder, test))


def add_folder(folder, totals):
    try:
        root = ElementTree.parse(folder / "ctest.xml").getroot()
    except (OSError, ElementTree.ParseError) as error:
        totals.fail(f"{folder.name}: no result of ctest ({error})")
        return
    for case in root.iter("testcase"):
        name = case.get("name")
        label = f"{folder.name}/{name}"
        status = case.get("status")
        failed = status == "fail" or case.find("failure") is not None or case.find("error") is not None
        details = folder / f"{name}.xml"
        if details.exists():
            add_details(details, label, failed, totals)
        elif failed:
            totals.fail(label, run_again(folder.name, name))
        elif status == "run":
            totals.passed += 1
        else:
            skipped = case.find("skipped")
            output = case.findtext("system-out") or ""
            reason = next((line for line in output.splitlines() if "SKIPPED" in line), None)
            totals.skip(label, reason or (skipped.get("message") if skipped is not None else status))


def main():
    results = pathlib.Path(sys.argv[1])
    totals = Totals()
    for folder in sorted(p for p in results.iterdir() if p.is_dir()):
        add_folder(folder, totals)
    for name, add in (("broken-steps", totals.fail), ("skipped-steps", lambda line: totals.skip(line, "left out"))):
        if (results / name).exists():
            for line in (results / name).read_text().splitlines():
                add(line)
    by_reason = collections.defaultdict(list)
    for (name, reason), count in totals.skipped.items():
        by_reason[reason].extend([name] * count)
    for reason, names in sorted(by_reason.items()):
        shown = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        print(f"skipped {len(names)}: {reason} ({shown})")
    for name, again in totals.failed:
        print(f"failed: {name}" + (f"\n        again: {again}" if again else ""))
    if not totals.passed and not totals.failed:
        totals.fail("no test ran")
    print(f"{totals.passed} passed, {len(totals.failed)} failed, {sum(totals.skipped.values())} skipped")
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
