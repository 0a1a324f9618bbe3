"""What tests/summary.py makes of a run: counts, reasons, and commands that run a failure again."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SUMMARY = pathlib.Path(__file__).resolve().parents[1] / "summary.py"

CTEST = """<testsuite>
<testcase name="net_test" status="fail"><failure/></testcase>
<testcase name="lint_rules" status="fail"><failure/></testcase>
<testcase name="kv_test" status="run"/>
<testcase name="gone_test" status="notrun"><skipped message="SKIP_RETURN_CODE"/><system-out>SKIPPED: no card</system-out></testcase>
</testsuite>"""
GTEST = """<testsuites><testsuite>
<testcase classname="Lanes/Http" name="Works/0" status="run" result="completed"><failure message="x"/></testcase>
<testcase classname="Http" name="Waits" status="run" result="completed"/>
<testcase classname="Http" name="Flies" status="run" result="skipped"><skipped message="no wings"/></testcase>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite>
<testcase classname="test_cli" name="test_ids[1 2]"><failure message="x"/></testcase>
</testsuite></testsuites>"""


def summarize(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        run = subprocess.run([sys.executable, SUMMARY, folder], capture_output=True, text=True, check=False)
        return run.returncode, run.stdout.splitlines()


class Summary(unittest.TestCase):
    def test_failures_name_themselves_and_their_command(self):
        code, lines = summarize({
            "release/ctest.xml": CTEST, "release/net_test.xml": GTEST,
            "asan-ubsan-integration/ctest.xml": '<testsuite><testcase name="integration" status="fail"><failure/></testcase></testsuite>',
            "asan-ubsan-integration/integration.xml": PYTEST, "broken-steps": "build of preset tsan\n"})
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "2 passed, 4 failed, 2 skipped")
        for wanted in ["failed: release/net_test: Lanes/Http.Works/0",
                       "        again: build/release/tests/net_test --gtest_filter=Lanes/Http.Works/0",
                       "        again: ctest --test-dir build/release --output-on-failure -R '^lint_rules$'",
                       "failed: build of preset tsan", "skipped 1: no wings (release/net_test: Http.Flies)"]:
            self.assertIn(wanted, lines)
        again = next(line for line in lines if "run.sh" in line)
        self.assertIn("TANDEM_TEST_BIN=$PWD/build/asan-ubsan/bin", again)
        self.assertTrue(again.endswith("tests/integration/run.sh 'tests/integration/test_cli.py::test_ids[1 2]'"), again)

    def test_a_crash_after_the_last_case_counts(self):
        passing = GTEST.replace('<failure message="x"/>', "")
        code, lines = summarize({"tsan-simulations/ctest.xml": CTEST, "tsan-simulations/net_test.xml": passing})
        self.assertEqual(code, 1)
        self.assertTrue(any("ended badly after its last test" in line for line in lines), lines)

    def test_no_test_at_all_is_a_failure(self):
        self.assertEqual(summarize({"release/ctest.xml": "<testsuite/>"}), (1, ["0 passed, 1 failed, 0 skipped"]))


if __name__ == "__main__":
    unittest.main()
