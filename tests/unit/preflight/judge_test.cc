// A cluster file against a machine that is made up: what its roles would refuse, and where.
#include "common/preflight/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "common/base/clock.h"

namespace tandem::preflight {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr uint64_t kGiB = uint64_t{1} << 30;

// Two CPUs, 24 GiB, no card, a UCX that knows tcp.
Machine small_machine() {
  Machine machine;
  machine.cpus = 2;
  machine.can_pin = [](uint32_t cpu) -> Status {
    if (cpu < 2) return {};
    return fail(ErrorCode::kConfig, "there is no CPU " + std::to_string(cpu) + "; use 0-1", "cpus");
  };
  machine.memory_bytes = 24 * kGiB;
  machine.no_devices = "no card; use device: cpu";
  machine.architectures = "90a";
  machine.check_ucx = [](const std::string& tls, std::vector<std::string>& warnings) -> Status {
    if (tls == "bogus") return fail(ErrorCode::kConfig, "nothing usable; see doctor");
    if (tls.find("bogus") != std::string::npos) warnings.push_back("'bogus' is not available");
    return {};
  };
  return machine;
}

Machine with_cards(uint32_t count, uint64_t gigabytes) {
  Machine machine = small_machine();
  for (uint32_t i = 0; i < count; ++i) {
    machine.devices.push_back({.index = static_cast<int>(i),
                               .name = "NVIDIA H200",
                               .uuid = "GPU-" + std::to_string(i),
                               .pci_id = {},
                               .major = 9,
                               .minor = 0,
                               .memory_bytes = gigabytes * kGiB});
  }
  machine.libraries.resize(2);
  machine.libraries[0].name = "cuBLASLt";
  machine.libraries[1].name = "NCCL";
  for (auto& library : machine.libraries) library.found = true;
  return machine;
}

Machine with_threads(Machine machine, uint64_t most) {
  machine.threads = most;
  return machine;
}

class Judge : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/tandem-preflight-XXXXXX";
    folder_ = mkdtemp(pattern);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }

  // Of a file with these lines below a model and a router on any free ports; the first is line 3.
  Findings judge_lines(const std::string& lines, const Machine& machine = small_machine(),
                       const Environment& environment = {}) {
    return judge_file("model: {path: " TANDEM_MODELS
                      "/chat-6m}\n"
                      "router: {http: {port: 0}, control: {port: 0}}\n" +
                          lines,
                      machine, environment);
  }
  Findings judge_file(const std::string& text, const Machine& machine = small_machine(),
                      const Environment& environment = {}) {
    const auto file = load_cluster_file(write("c.yaml", text), environment);
    if (!file) {
      ADD_FAILURE() << file.error().detail;
      return {};
    }
    return judge(*file, machine, clock_);
  }
  // "KEY: …", without the file's place, of the only one.
  std::string only(const Findings& findings, bool refuses) {
    EXPECT_THAT(findings, SizeIs(1));
    if (findings.size() != 1) return all(findings);
    EXPECT_EQ(findings[0].refuses, refuses);
    EXPECT_THAT(findings[0].origin, StartsWith((folder_ / "c.yaml").string() + ":"));
    Finding bare = findings[0];
    bare.origin.clear();
    return to_string(bare);
  }
  static std::string all(const Findings& findings) {
    std::string text;
    for (const Finding& finding : findings) text += to_string(finding) + "\n";
    return text;
  }

  SteadyClock clock_;
  std::filesystem::path folder_;
};

TEST_F(Judge, AFileThatFitsHasNoFindings) {
  EXPECT_THAT(judge_lines("decode: [{cpus: [0, 1], transport: {ucx_tls: tcp}}]\n"), IsEmpty());
}

TEST_F(Judge, CpusAndThreads) {
  EXPECT_EQ(only(judge_lines("decode: [{cpus: [77]}]"), true),
            "decode[0].cpus: [77]: there is no CPU 77; use 0-1");
  EXPECT_THAT(only(judge_lines("decode: [{threads: 4000}]"), false),
              AllOf(HasSubstr("decode[0].threads: 4000: more compute threads than the 2 CPUs"),
                    HasSubstr("use 2 or fewer")));
  Machine crowded = small_machine();
  crowded.threads = 1000;
  EXPECT_THAT(only(judge_lines("decode: [{threads: 4000}]", crowded), true),
              AllOf(HasSubstr("decode[0].threads: 4000: "), HasSubstr("1000 threads may run"),
                    HasSubstr("; use fewer")));
  EXPECT_THAT(only(judge_lines("prefill: [{cpus: [0]}]\ndecode: [{cpus: [1, 0]}]"), false),
              HasSubstr("CPU 0 computes for prefill-0 too"));
  EXPECT_THAT(judge_lines("cpu_tail: {enabled: true, threads: 40, memory: 1GiB}"), SizeIs(1));
  // A card computes for its node, and no CPU.
  EXPECT_THAT(judge_lines("decode: [{device: cuda, cpus: [77]}]", with_cards(1, 140)), IsEmpty());
}

TEST_F(Judge, ThreadsThatTheSystemDoesNotLetRun) {
  Machine few = with_threads(small_machine(), 20);
  few.cpus = 64;
  EXPECT_THAT(only(judge_lines("prefill: []\ndecode: [{threads: 32}]", few), true),
              AllOf(StartsWith("decode[0].threads: 32: 32 compute threads are wanted"),
                    HasSubstr("20 threads may run")));
  EXPECT_THAT(judge_lines("prefill: [{threads: 4}]\ndecode: [{threads: 19}]", few), IsEmpty());
  // A share of the CPUs that nobody asked for, and one thread for each CPU listed.
  EXPECT_THAT(only(judge_lines("prefill: [{threads: 1}]\ndecode: [{name: d}]", few), true),
              AllOf(StartsWith("decode[0].threads: "), HasSubstr("32 compute threads are wanted")));
  few = with_threads(small_machine(), 2);
  EXPECT_THAT(only(judge_lines("prefill: []\ndecode: [{cpus: [0, 1]}]", few), true),
              AllOf(StartsWith("decode[0].cpus: "), HasSubstr("2 compute threads are wanted")));
  EXPECT_THAT(only(judge_lines("prefill: [{threads: 1}]\ndecode: [{threads: 1}]\n"
                               "cpu_tail: {enabled: true, threads: 2, memory: 1GiB}",
                               few),
                   true),
              StartsWith("cpu_tail.threads: 2: "));
  EXPECT_THAT(only(judge_lines("prefill: []\ndecode: [{device: cuda}]\n"
                               "cpu_tail: {enabled: true, memory: 1GiB}",
                               with_threads(with_cards(1, 140), 2)),
                   true),
              AllOf(StartsWith("cpu_tail.threads: "), HasSubstr("2 compute threads are wanted")));
}

TEST_F(Judge, TransportsThatMoveNothingBetweenTheseNodes) {
  EXPECT_THAT(only(judge_lines("decode: [{transport: {kind: nccl}}]"), true),
              AllOf(HasSubstr("decode[0].transport.kind: nccl"), HasSubstr("on the host")));
  EXPECT_THAT(only(judge_lines("prefill: [{transport: {kind: cuda_ipc}}]"), true),
              HasSubstr("prefill[0].transport.kind: cuda_ipc"));
  EXPECT_THAT(only(judge_lines("decode: [{transport: {kind: inproc}}]"), true),
              HasSubstr("separate processes"));
  EXPECT_THAT(only(judge_lines("decode: [{transport: {ucx_tls: bogus}}]"), true),
              HasSubstr("decode[0].transport.ucx_tls: \"bogus\": nothing usable; see doctor"));
  EXPECT_THAT(only(judge_lines("decode: [{transport: {ucx_tls: \"tcp,bogus\"}}]"), false),
              HasSubstr("'bogus' is not available"));
  // One line for each key that has to be changed.
  EXPECT_THAT(judge_lines("decode: [{transport: {ucx_tls: bogus}}, {transport: {ucx_tls: bogus}}]"),
              SizeIs(2));
  // Only a process that holds the card can tell.
  EXPECT_THAT(judge_lines("prefill: []\n"
                          "decode: [{device: cuda, transport: {kind: ucx, ucx_tls: cuda_bogus}}]",
                          with_cards(1, 140)),
              IsEmpty());
  // The node on the host uses ucx, whatever the other one's file says.
  EXPECT_THAT(
      only(judge_lines("decode: [{device: cuda, transport: {kind: nccl}}]", with_cards(1, 140)),
           true),
      HasSubstr("is nccl here and ucx on prefill-0"));
  EXPECT_THAT(all(judge_lines("prefill: [{device: cuda, transport: {kind: nccl}}]\n"
                              "decode: [{device: cuda, transport: {kind: nccl}}]",
                              with_cards(1, 140))),
              HasSubstr("no two processes on one GPU"));
}

TEST_F(Judge, MemoryOfTheHost) {
  EXPECT_THAT(only(judge_lines("decode: [{kv_memory: 100GiB}]"), true),
              AllOf(HasSubstr("decode[0].kv_memory: 100GiB"), HasSubstr("has 24.0 GiB; lower")));
  EXPECT_THAT(only(judge_lines("kv: {memory: 15GiB}"), false),
              AllOf(HasSubstr("kv.memory: 15GiB"), HasSubstr("prefill-0 15.0 GiB"),
                    HasSubstr("decode-0 15.0 GiB"), HasSubstr("has 24.0 GiB")));
  Machine unknown = small_machine();
  unknown.memory_bytes = 0;
  EXPECT_THAT(judge_lines("kv: {memory: 900GiB}", unknown), IsEmpty());
}

TEST_F(Judge, WhatAPoolMustHold) {
  // 48 KiB a block of 16 tokens: 21 of them, and the context is 4096.
  EXPECT_THAT(only(judge_lines("decode: [{kv_memory: 1MiB}]"), false),
              AllOf(HasSubstr("decode[0].kv_memory: 1MiB"), HasSubstr("room for 336 tokens"),
                    HasSubstr("raise it to 12.0 MiB")));
  EXPECT_THAT(only(judge_lines("decode: [{kv_blocks: 3}]"), true),
              AllOf(HasSubstr("decode[0].kv_blocks: 3"), HasSubstr("at least 4 are needed")));
  EXPECT_THAT(only(judge_lines("cpu_tail: {enabled: true, free_below: 1GiB}"), true),
              HasSubstr("cpu_tail.free_below: 1GiB"));
  EXPECT_THAT(all(judge_lines("", small_machine(), {{"TANDEM_DECODE_0_KV_BLOCKS", "3"}})),
              HasSubstr("environment variable TANDEM_DECODE_0_KV_BLOCKS: decode[0].kv_blocks: 3"));
}

TEST_F(Judge, CardsThatAreNotThereOrTooSmall) {
  EXPECT_EQ(only(judge_lines("decode: [{device: cuda}]"), true),
            "decode[0].device: \"cuda\": node decode-0: no card; use device: cpu");
  EXPECT_THAT(only(judge_lines("decode: [{device: \"cuda:5\"}]", with_cards(2, 140)), true),
              HasSubstr("there is no CUDA device 5"));
  Machine old = with_cards(1, 140);
  old.devices[0].major = 8;
  EXPECT_THAT(only(judge_lines("decode: [{device: cuda}]", old), true),
              HasSubstr("compute capability 8.0"));
  Machine bare = with_cards(1, 140);
  bare.libraries[0].found = false;
  bare.libraries[0].problem = "libcublasLt.so.13 is not found";
  EXPECT_THAT(all(judge_lines("decode: [{device: cuda}]", bare)),
              AllOf(HasSubstr("gpu.libraries"), HasSubstr("libcublasLt.so.13 is not found")));
  EXPECT_THAT(only(judge_lines("kv: {format: f32}\ndecode: [{device: cuda}]\nprefill: []",
                               with_cards(1, 140)),
                   true),
              HasSubstr("kv.format: f32"));
}

#ifdef TANDEM_TEST_CUDA_BUILD  // others refuse the device itself
TEST_F(Judge, AModelThatTheCardsEngineDoesNotRun) {
  const std::string large =
      "decode: [{device: cuda, max_batch_tokens: 500000, kv_memory: 1GiB}]\nprefill: []";
  EXPECT_THAT(only(judge_lines(large, with_cards(1, 140)), true),
              AllOf(HasSubstr("decode[0].max_batch_tokens"), HasSubstr("at most 262144")));
  std::filesystem::copy(TANDEM_MODELS "/chat-6m", folder_ / "wide");
  std::ifstream file(folder_ / "wide/config.json");
  std::string config((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t old = config.find("\"head_dim\"");
  if (old != config.npos) config.erase(old, config.find(',', old) + 1 - old);
  config.insert(config.find('{') + 1, "\"head_dim\": 258,");
  std::filesystem::permissions(folder_ / "wide/config.json", std::filesystem::perms::owner_all);
  write("wide/config.json", config);
  const std::string model = "model: {path: " + (folder_ / "wide").string() +
                            ", load_format: dummy}\n"
                            "router: {http: {port: 0}, control: {port: 0}}\n";
  EXPECT_THAT(only(judge_file(model + "decode: [{device: cuda, kv_memory: 1GiB}]\nprefill: []",
                              with_cards(1, 140)),
                   true),
              AllOf(HasSubstr("decode[0].device"), HasSubstr("head_dim is 258")));
  EXPECT_THAT(judge_file(model + "decode: [{kv_memory: 1GiB}]\nprefill: []"), IsEmpty());
}
#endif

TEST_F(Judge, NodesOnOneCardThatTogetherWantMoreThanItHas) {
  const auto both = [](const std::string& other) {
    return "decode: [{device: \"" + other +
           "\", kv_memory: 100GiB}]\nprefill: [{device: cuda, kv_memory: 100GiB}]";
  };
  EXPECT_THAT(only(judge_lines(both("cuda:0"), with_cards(1, 140)), true),
              AllOf(HasSubstr("decode[0].kv_memory: 100GiB: cuda:0 has 140.0 GiB, prefill-0 of it "
                              "100.0 GiB, and decode-0 needs"),
                    HasSubstr("lower kv_memory")));
  EXPECT_THAT(judge_lines(both("cuda:0"), with_cards(1, 280)), IsEmpty());
  EXPECT_THAT(
      only(judge_lines("decode: [{device: cuda, kv_memory: 200GiB}]", with_cards(1, 140)), true),
      AllOf(HasSubstr("decode[0].kv_memory: 200GiB"), HasSubstr("does not fit")));
  EXPECT_THAT(judge_lines(both("cuda:1"), with_cards(2, 140)), IsEmpty());
}

// What comes after the pool needs its room too.
TEST_F(Judge, APoolThatLeavesNothingForTheTransport) {
  const std::string pool = "decode: [{device: cuda, kv_memory: 139GiB";
  EXPECT_THAT(judge_lines(pool + "}]\nprefill: []", with_cards(1, 140)), IsEmpty());
  EXPECT_THAT(
      all(judge_lines(pool + ", transport: {kind: nccl}}]\nprefill: []", with_cards(1, 140))),
      AllOf(HasSubstr("decode[0].kv_memory"), HasSubstr("transport nccl from 1 peer 1.91 GiB")));
}

TEST_F(Judge, FilesThatRolesReadAndWrite) {
  EXPECT_THAT(only(judge_lines("log: {file: nowhere/x.log}"), true),
              AllOf(HasSubstr("log.file: "), HasSubstr((folder_ / "nowhere/x.log").string()),
                    HasSubstr("No such file or directory")));
  EXPECT_THAT(only(judge_lines("log: {file: .}"), true), HasSubstr("Is a directory"));
  EXPECT_THAT(judge_lines("log: {file: new.log}"), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new.log"));  // looked at, not made
  EXPECT_THAT(only(judge_lines("gpu: {libraries: [gone]}"), false),
              HasSubstr("there is no folder " + (folder_ / "gone").string()));
  write("keys", "# none yet\n");
  EXPECT_THAT(all(judge_file("model: {path: " TANDEM_MODELS "/chat-6m}\n"
                             "router: {http: {port: 0, api_keys_file: keys}, control: {port: 0, "
                             "shared_key_file: keys}}\n")),
              AllOf(HasSubstr("router.http.api_keys_file: "), HasSubstr("holds no key"),
                    HasSubstr("router.control.shared_key_file: ")));
  write("cert", "no certificate");
  EXPECT_THAT(all(judge_file("model: {path: " TANDEM_MODELS "/chat-6m}\n"
                             "router: {http: {port: 0, tls: {certificate: cert, key: cert}}, "
                             "control: {port: 0}}\n")),
              HasSubstr("router.http.tls.certificate: "));
}

TEST_F(Judge, Models) {
  const std::string router = "router: {http: {port: 0}, control: {port: 0}}\n";
  EXPECT_THAT(all(judge_file("model: {path: .}\n" + router)),
              AllOf(HasSubstr("c.yaml:1: model.path: "), HasSubstr("neither config.json nor")));
  write("x.gguf", "not one");
  EXPECT_THAT(all(judge_file("model: {path: x.gguf}\n" + router)), HasSubstr("x.gguf"));
  EXPECT_THAT(all(judge_file("model: {path: x.gguf, load_format: dummy}\n" + router)),
              HasSubstr("model.load_format: dummy: "));
  const Findings longer =
      judge_file("model: {path: " TANDEM_MODELS "/chat-6m, max_context: 8192}\n" + router);
  ASSERT_THAT(longer, SizeIs(1));
  EXPECT_FALSE(longer[0].refuses);
  EXPECT_THAT(to_string(longer[0]),
              HasSubstr("c.yaml:1: model.max_context: 8192: the model's context is 4096 tokens"));
}

TEST_F(Judge, WhatAModelRecommends) {
  for (const char* name :
       {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::create_symlink(std::filesystem::path(TANDEM_MODELS "/chat-6m") / name,
                                    folder_ / name);
  }
  write("generation_config.json", R"({"temperature": "warm"})");
  const auto of_router = [&](const std::string& more) {
    return judge_file("model: {path: .}\nrouter: {http: {port: 0}, control: {port: 0}" + more +
                      "}\n");
  };
  EXPECT_THAT(only(of_router(""), true),
              AllOf(StartsWith("router.sampling.from_model: true: "),
                    HasSubstr("generation_config.json: temperature"), HasSubstr("; with router")));
  EXPECT_THAT(of_router(", sampling: {from_model: false}"), IsEmpty());
  EXPECT_THAT(of_router(", enabled: false"), IsEmpty());  // nodes do not read it
}

TEST_F(Judge, EverythingIsToldAtOnceAndRefusedTogether) {
  const Findings findings = judge_lines(
      "decode: [{cpus: [77], transport: {kind: inproc}, threads: 1}]\n"
      "log: {file: nowhere/x}\nkv: {memory: 15GiB}");
  EXPECT_THAT(findings, SizeIs(4));
  const Status refused = refusal(findings);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConfig);
  EXPECT_THAT(refused.error().detail,
              AllOf(HasSubstr("decode[0].cpus"), HasSubstr("decode[0].transport.kind"),
                    HasSubstr("log.file"), Not(HasSubstr("15GiB"))));
  EXPECT_TRUE(refusal({}));
  EXPECT_TRUE(refusal(judge_lines("decode: [{threads: 4000}]")));
}

TEST_F(Judge, WhateverIsRefusedIsTheFilesFault) {
  // A link-local address without its interface: none of the errors that listening knows.
  const Findings findings = judge_file("model: {path: " TANDEM_MODELS
                                       "/chat-6m}\nrouter: {http: {port: 0}, "
                                       "control: {port: 0, host: \"fe80::1\"}}\n");
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(refusal(findings).error().code, ErrorCode::kConfig);
}

TEST(ReadMachine, TellsWhatThisOneHas) {
  const ClusterConfig config;
  const Machine machine = read_machine(config);
  EXPECT_GE(machine.cpus, 1U);
  EXPECT_GT(machine.memory_bytes, uint64_t{1} << 28);
  EXPECT_FALSE(machine.can_pin(65535));
  EXPECT_THAT(machine.libraries, IsEmpty());  // nobody asks for a card
}

}  // namespace
}  // namespace tandem::preflight
