#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tools/doctor/collect.h"
#include "tools/doctor/report.h"

namespace tandem::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Report cpu_machine() {
  Report r;
  r.version = "0.1.0";
  r.built_with_cuda = true;
  r.architectures = "90a";
  r.system.os = "Debian GNU/Linux 12 (bookworm)";
  r.system.cpus = 2;
  r.system.shm_bytes = uint64_t{8} << 30;
  r.kernels = "avx2";
  r.cuda.runtime = 13000;
  r.cuda_error = "no card";
  r.nvml_error = "cannot open libnvidia-ml.so.1";
  r.libraries = {{.name = "cuBLASLt",
                  .soname = "libcublasLt.so.13",
                  .purpose = "device: cuda",
                  .found = false,
                  .path = {},
                  .version = {},
                  .problem = "not found"}};
  r.ucx_version = "1.13.1";
  r.transports = {{.name = "ucx", .usable = true, .detail = "posix, tcp"}};
  return r;
}

Report gpu_machine() {
  Report r = cpu_machine();
  r.system.nvidia_device_files = true;
  r.cuda = {.driver = 13000, .runtime = 13000};
  r.driver = "580.159.04";
  r.cuda_error.clear();
  r.nvml_error.clear();
  r.ucx_knows_cuda = true;
  r.libraries[0].found = true;
  r.libraries[0].version = "13.1.0";
  r.libraries.push_back({.name = "NCCL",
                         .soname = "libnccl.so.2",
                         .purpose = "transport nccl",
                         .found = true,
                         .path = "/x/libnccl.so.2",
                         .version = "2.28.9",
                         .problem = {}});
  for (int i = 0; i < 2; ++i) {
    cuda::DeviceInfo device;
    device.index = i;
    device.name = "NVIDIA H200";
    device.uuid = "GPU-" + std::to_string(i);
    device.major = 9;
    device.memory_bytes = uint64_t{141} << 30;
    r.devices.push_back(device);
    cuda::CardHealth card;
    card.index = static_cast<uint32_t>(i);
    card.name = device.name;
    card.uuid = device.uuid;
    card.nvlinks.resize(18);
    for (cuda::NvLink& link : card.nvlinks)
      link = {.active = true,
              .bytes_per_second = 26'562'000'000,
              .replays = 0,
              .recoveries = 0,
              .crc_errors = 0};
    r.cards.push_back(card);
  }
  const cuda::CardPair self{cuda::PairPath::kSameCard, 0, 0},
      other{cuda::PairPath::kNvLink, 18, 18};
  r.topology = {{self, other}, {other, self}};
  return r;
}

std::string all(const std::vector<Finding>& findings, Severity severity) {
  std::string text;
  for (const Finding& f : findings) {
    if (f.severity == severity) text += f.text + "\n";
  }
  return text;
}

TEST(Findings, AMachineWithoutCardsIsHealthy) {
  const auto findings = find(cpu_machine());
  EXPECT_TRUE(healthy(findings));
  EXPECT_EQ(all(findings, Severity::kWarning), "");
  EXPECT_THAT(all(findings, Severity::kNote), HasSubstr("nodes run on CPU"));
}

TEST(Findings, AMachineWithCardsInOrderHasNothingToTell) {
  const auto findings = find(gpu_machine());
  EXPECT_TRUE(findings.empty()) << findings[0].text;
}

TEST(Findings, ACardThatCudaCannotUseIsAProblem) {
  Report r = gpu_machine();
  r.devices.clear();
  r.cuda_error = "the driver is too old";
  const auto findings = find(r);
  EXPECT_FALSE(healthy(findings));
  EXPECT_THAT(findings[0].text, HasSubstr("the driver is too old"));
}

TEST(Findings, ABuildWithoutCudaOnAGpuMachineIsTold) {
  Report r = gpu_machine();
  r.built_with_cuda = false;
  r.devices.clear();
  const auto findings = find(r);
  EXPECT_TRUE(healthy(findings));  // it serves from CPU
  EXPECT_THAT(all(findings, Severity::kWarning), HasSubstr("install-cuda.sh"));
}

TEST(Findings, MissingLibrariesSayWhatDoesNotWorkWithoutThem) {
  Report r = gpu_machine();
  r.libraries[0].found = r.libraries[1].found = false;
  r.libraries[0].problem = "cannot open libcublasLt.so.13";
  const auto findings = find(r);
  EXPECT_THAT(all(findings, Severity::kProblem), HasSubstr("cannot open libcublasLt.so.13"));
  EXPECT_THAT(all(findings, Severity::kProblem), HasSubstr("TANDEM_GPU_LIBRARIES"));
  EXPECT_THAT(all(findings, Severity::kWarning), HasSubstr("transport nccl"));
  r.devices.resize(1);  // alone there is nobody to talk to by NCCL
  EXPECT_THAT(all(find(r), Severity::kWarning), Not(HasSubstr("NCCL")));
}

TEST(Findings, DegradedLinksErrorsAndThrottlingAreWarnings) {
  Report r = gpu_machine();
  r.cards[1].nvlinks[0].active = false;
  r.cards[0].ecc_uncorrected = 3;
  r.cards[0].slowed_by = {"temperature"};
  const std::string text = all(find(r), Severity::kWarning);
  EXPECT_THAT(text, HasSubstr("card 1 (GPU-1): 17 of 18 NVLinks are up"));
  EXPECT_THAT(text, HasSubstr("3 uncorrectable memory errors"));
  EXPECT_THAT(text, HasSubstr("held down by temperature"));
}

TEST(Findings, ADriverOlderThanTheBuildIsAProblem) {
  Report r = gpu_machine();
  r.cuda.driver = 12080;
  EXPECT_THAT(all(find(r), Severity::kProblem), HasSubstr("CUDA 12.8, this build needs 13.0"));
}

TEST(Findings, ThoseOfAClusterFileSayWhereAndWhatToDo) {
  const preflight::Findings of_file{
      {.refuses = false, .key = "decode[0].threads", .value = "40", .reason = "too many"},
      {.origin = "c.yaml:3",
       .key = "decode[0].cpus",
       .value = "[77]",
       .reason = "no CPU 77",
       .remedy = "use 0-1"}};
  const Report r = cpu_machine();
  const auto findings = find(r, of_file);
  EXPECT_FALSE(healthy(findings));
  EXPECT_EQ(all(findings, Severity::kProblem),
            "c.yaml:3: decode[0].cpus: [77]: no CPU 77; use 0-1\n");
  EXPECT_EQ(all(findings, Severity::kWarning), "decode[0].threads: 40: too many\n");
  EXPECT_THAT(render_text(r, findings), HasSubstr("problem: c.yaml:3: decode[0].cpus"));
  const auto json = boost::json::parse(render_json(r, findings)).at("findings").as_array();
  EXPECT_EQ(json[0].at("severity").as_string(), "problem");
  EXPECT_EQ(json[0].at("origin").as_string(), "c.yaml:3");
  EXPECT_EQ(json[0].at("key").as_string(), "decode[0].cpus");
  EXPECT_EQ(json[0].at("value").as_string(), "[77]");
  EXPECT_EQ(json[0].at("reason").as_string(), "no CPU 77");
  EXPECT_EQ(json[0].at("remedy").as_string(), "use 0-1");
  EXPECT_TRUE(json[1].at("origin").is_null());
}

TEST(Render, AMachineWithoutCardsIsNoFaultOfCudas) {
  Report r = cpu_machine();
  r.cuda_error = "cudaGetDeviceCount(&count): CUDA driver version is insufficient";
  const auto text = [&] { return render_text(r, find(r)); };
  EXPECT_THAT(text(), HasSubstr("  none          no NVIDIA driver found: CPU only\n"));
  EXPECT_THAT(text(), HasSubstr("note: no NVIDIA driver found: nodes run on CPU"));
  EXPECT_THAT(text(), Not(HasSubstr("cudaGetDeviceCount")));
  r.cuda.driver = 13000;
  EXPECT_THAT(text(), HasSubstr("  none          no NVIDIA card found: CPU only\n"));
  r.system.nvidia_device_files = true;
  EXPECT_THAT(text(), HasSubstr("problem: there is an NVIDIA card, but CUDA cannot use it: cuda"));
  r.built_with_cuda = false;
  EXPECT_THAT(text(), HasSubstr("  none          this build has no CUDA: CPU only\n"));
}

TEST(Render, TheLastLineDoesNotHideWarnings) {
  const Report r = cpu_machine();
  const auto last = [&r](size_t warnings) {
    const preflight::Findings of_file(
        warnings, {.refuses = false, .key = "model.max_context", .reason = "less"});
    std::string text = render_text(r, find(r, of_file));
    text.pop_back();
    return text.substr(text.rfind('\n') + 1);
  };
  EXPECT_EQ(last(0), "no problem found");
  EXPECT_EQ(last(1), "no problem that stops anything, but 1 warning: see above");
  EXPECT_EQ(last(2), "no problem that stops anything, but 2 warnings: see above");
}

TEST(Findings, AClusterThatRunsIsToldSinceItsPortsAreNotLookedAt) {
  Report r = cpu_machine();
  r.supervisor = 4711;
  EXPECT_THAT(all(find(r), Severity::kNote), HasSubstr("this cluster runs (process 4711)"));
}

TEST(Findings, ASmallSharedMemoryIsToldWhereNcclMayWantIt) {
  Report r = cpu_machine();
  r.system.shm_bytes = uint64_t{64} << 20;  // Docker's default
  EXPECT_THAT(all(find(r), Severity::kWarning), Not(HasSubstr("/dev/shm")));
  r.system.nvidia_device_files = true;
  EXPECT_THAT(all(find(r), Severity::kWarning), HasSubstr("--shm-size"));
}

TEST(Render, BothFormsShowCardsLinksAndLibraries) {
  const Report r = gpu_machine();
  const auto findings = find(r);
  const std::string text = render_text(r, findings);
  for (const char* part : {"cuda:0", "cuda:1", "NVIDIA H200", "18 of 18 NVLinks up, 478 GB/s",
                           "NV18", "580.159.04", "2.28.9", "knows CUDA", "no problem found"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const auto json = boost::json::parse(render_json(r, findings)).as_object();
  EXPECT_TRUE(json.at("healthy").as_bool());
  EXPECT_EQ(json.at("devices").as_array().size(), 2u);
  EXPECT_EQ(json.at("topology").as_array()[0].as_array()[1].as_string(), "NV18");
  EXPECT_EQ(json.at("cards").as_array()[0].at("nvlink").at("active").to_number<int>(), 18);
  EXPECT_TRUE(json.at("cards").as_array()[0].at("temperature_celsius").is_null());
  EXPECT_EQ(json.at("cuda").at("runtime").as_string(), "13.0");
}

TEST(Collect, ThisMachineIsDescribed) {
  const Report r = collect(nullptr, {}, "test");
  EXPECT_GE(r.system.cpus, 1u);
  EXPECT_GT(r.system.memory_bytes.value_or(0), uint64_t{1} << 28);
  EXPECT_FALSE(r.ucx_version.empty());
  EXPECT_EQ(r.libraries.size(), 5u);
  EXPECT_FALSE(boost::json::parse(render_json(r, find(r))).as_object().empty());
  std::cout << render_text(r, find(r));
}

TEST(SystemFactsTest, ReadsWhatLinuxWrites) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(::testing::TempDir()) / "tandem-doctor-root";
  fs::remove_all(root);
  auto write = [&root](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  write("etc/os-release", "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\n");
  write("proc/meminfo",
        "MemTotal:       16384000 kB\nMemAvailable:   8192000 kB\nHugePages_Total:       7\n");
  write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write("sys/devices/system/node/node0/x", "");
  write("sys/devices/system/node/node1/x", "");
  write("sys/devices/system/node/has_cpu", "");
  write("dev/nvidia0", "");
  const SystemFacts facts = read_system(root.string());
  EXPECT_EQ(facts.os, "Debian GNU/Linux 12 (bookworm)");
  EXPECT_EQ(facts.cpu, "Some CPU @ 2.00GHz");
  EXPECT_EQ(facts.memory_bytes, uint64_t{16384000} << 10);
  EXPECT_EQ(facts.memory_available_bytes, uint64_t{8192000} << 10);
  EXPECT_EQ(facts.huge_pages, 7u);
  EXPECT_EQ(facts.transparent_huge_pages, "madvise");
  EXPECT_EQ(facts.numa_nodes, 2u);
  EXPECT_TRUE(facts.nvidia_device_files);
  const SystemFacts nothing = read_system((root / "nowhere").string());
  EXPECT_FALSE(nothing.memory_bytes);
  EXPECT_FALSE(nothing.shm_bytes);
  EXPECT_EQ(nothing.os, "");
  fs::remove_all(root);
}

}  // namespace
}  // namespace tandem::doctor
