#!/usr/bin/env python3
"""The lint must find what it forbids: each rule gets a small tree that breaks it and one that does not."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import lint  # noqa: E402


def findings(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return lint.lint(root)


class Lint(unittest.TestCase):
    def expect(self, files, *fragments):
        found = findings(files)
        self.assertEqual(len(found), len(fragments), found)
        for line, fragment in zip(found, fragments):
            self.assertIn(fragment, line)

    header = "#pragma once\n"

    def test_downward_include_is_fine(self):
        self.expect({"common/base/a.h": self.header, "common/net/b.cc": '#include "common/base/a.h"\n'})

    def test_upward_include(self):
        self.expect({"common/net/a.h": self.header, "common/base/b.cc": 'int x;\n#include "common/net/a.h"\n'},
                    "common/base/b.cc:2: common/base must not include common/net")

    def test_router_never_sees_the_engine(self):
        self.expect({"common/engine/a.h": self.header, "router/b.cc": '#include "common/engine/a.h"\n'},
                    "router must not include common/engine")

    def test_nodes_never_include_each_other(self):
        self.expect({"decode_node/a.h": self.header, "prefill_node/b.cc": '#include "decode_node/a.h"\n'},
                    "prefill_node must not include decode_node")

    def test_the_run_directory_the_client_and_the_supervisor_depend_one_way(self):
        folders = ("run_dir", "client", "supervise")
        headers = {f"tools/{folder}/a.h": self.header for folder in folders}
        for number, folder in enumerate(folders):
            for other in folders[:number]:
                self.expect({**headers, f"tools/{folder}/b.cc": f'#include "tools/{other}/a.h"\n'})
                self.expect({**headers, f"tools/{other}/b.cc": f'#include "tools/{folder}/a.h"\n'},
                            f"tools/{other} must not include tools/{folder}")

    def test_kernels_see_base_and_kv_only(self):
        self.expect({"common/kv/a.h": self.header, "common/model/a.h": self.header,
                     "kernels/cpu/b.cc": '#include "common/kv/a.h"\n#include "common/model/a.h"\n'},
                    "b.cc:2: kernels must not include common/model")

    def test_include_relative_to_the_file(self):
        self.expect({"router/a.h": self.header, "router/b.cc": '#include "a.h"\n'}, "relative to the repository root")

    def test_generated_protobuf_header(self):
        self.expect({"common/proto/control.proto": "", "router/b.cc": '#include "common/proto/control.pb.h"\n'})

    def test_confined_headers_and_calls(self):
        self.expect({"common/transport/inproc/a.cc": "#include <ucp/api/ucp.h>\n",
                     "common/transport/ucx/a.cc": "#include <ucp/api/ucp.h>\n"}, "inproc/a.cc:1: UCX headers")
        self.expect({"router/a.cc": "#include <yaml-cpp/yaml.h>\n"}, "yaml-cpp stays")
        self.expect({"router/a.cc": 'auto* v = std::getenv("X");\n'}, "environment is read")
        self.expect({"router/a.cc": "auto t = std::chrono::steady_clock::now();\n"}, "time comes from Clock")
        self.expect({"router/a.cc": "#include <cuda_runtime.h>\n"}, "CUDA headers")

    def test_comments_do_not_count(self):
        self.expect({"router/a.cc": "// getenv(x), steady_clock\n/* steady_clock */\n"})

    def test_default_in_an_enum_switch(self):
        enum = "void f(E e) {\n  switch (e) {\n    case E::kOne: break;\n    default: break;\n  }\n}\n"
        self.expect({"router/a.cc": enum}, "router/a.cc:4: a switch over an enum")
        self.expect({"router/a.cc": enum.replace("E::kOne", "1")})

    def test_long_file(self):
        for path in ("router/a.cc", "tests/unit/a.cc", "tests/integration/a.py"):
            self.expect({path: "\n" * 601}, "601 lines")
            self.expect({path: "\n" * 600})

    def test_header_guard(self):
        self.expect({"router/a.h": "int x;\n"}, "#pragma once")

    def test_folder_without_readme(self):
        self.expect({"common/net/CMakeLists.txt": ""}, "common/net/README.md")


if __name__ == "__main__":
    unittest.main()
