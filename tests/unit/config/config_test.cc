#include "common/config/config.h"
#include "common/config/cache_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "common/config/listen_points.h"

namespace tandem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Result<ClusterConfig> parse(std::string_view text, const Environment& environment = {}) {
  return parse_cluster_config(text, "c.yaml", "/etc/tandem", environment);
}
std::string refusal(std::string_view text, const Environment& environment = {}) {
  const auto result = parse(text, environment);
  return result ? "accepted" : result.error().detail;
}

TEST(ClusterFile, TwoLinesAreAWholeCluster) {
  const auto config = parse("model:\n  path: /m/chat-6m/\n").value();
  ASSERT_EQ(config.prefill.size(), 1u);
  ASSERT_EQ(config.decode.size(), 1u);
  EXPECT_EQ(config.prefill[0].name, "prefill-0");
  EXPECT_EQ(config.decode[0].name, "decode-0");
  EXPECT_TRUE(config.router.enabled);
  EXPECT_EQ(config.router.admission.deadline, seconds(3));
  EXPECT_EQ(config.router.http.max_body, mib(8));
  EXPECT_EQ(served_model_id(config.model), "chat-6m");
  EXPECT_EQ(router_address(config, config.decode[0]), "127.0.0.1:7070");
}

constexpr std::string_view kFull = R"(
model: {path: ../models/x.gguf, id: "org/name v1", dtype: bf16, max_context: 4096}
kv: {format: int8, memory: 2GiB, prefix_cache: false}
router:
  http:
    port: 0
    idle_timeout: 90s
    tls: {certificate: tls.crt, key: /k/tls.key}
    api_keys: [sk-1, "sk-2"]
    cors_origins: []
  control: {host: "::", port: 7171, shared_key: s3cret}
prefill:
  - name: p
    cpus: [0, 2]
    transport: {kind: ucx, ucx_tls: tcp}
  - chunk_tokens: 64
decode: []
log: {level: debug}
)";

TEST(ClusterFile, ReadsEveryKindOfField) {
  const auto config = parse(kFull).value();
  EXPECT_EQ(config.model.path, "/etc/models/x.gguf");
  EXPECT_EQ(served_model_id(config.model), "org/name v1");
  EXPECT_EQ(config.model.dtype, WeightType::kBf16);
  EXPECT_EQ(config.kv.format, KvFormatChoice::kInt8);
  EXPECT_EQ(config.kv.memory, gib(2));
  EXPECT_FALSE(config.kv.prefix_cache);
  EXPECT_EQ(config.router.http.idle_timeout, seconds(90));
  EXPECT_EQ(config.router.http.tls.certificate, "/etc/tandem/tls.crt");
  EXPECT_EQ(config.router.http.tls.key, "/k/tls.key");
  EXPECT_THAT(config.router.http.api_keys, ElementsAre("sk-1", "sk-2"));
  EXPECT_TRUE(config.router.http.cors_origins.empty());
  EXPECT_THAT(config.prefill[0].cpus, ElementsAre(0, 2));
  EXPECT_EQ(config.prefill[0].transport.ucx_tls, "tcp");
  EXPECT_EQ(config.prefill[1].name, "prefill-0");
  EXPECT_EQ(config.prefill[1].chunk_tokens, 64u);
  EXPECT_TRUE(config.decode.empty());
  EXPECT_EQ(router_address(config, config.prefill[0]), "[::1]:7171");
}

TEST(ClusterFile, NumbersThatMayBeLeftToTheModel) {
  const auto config = parse(R"(
model: {path: m}
router: {sampling: {from_model: false, temperature: 0, top_p: auto, top_k: 40}}
)")
                          .value();
  const SamplingSettings& sampling = config.router.sampling;
  EXPECT_FALSE(sampling.from_model);
  EXPECT_EQ(sampling.temperature, 0.0);
  EXPECT_EQ(sampling.top_p, std::nullopt);
  EXPECT_EQ(sampling.top_k, 40u);
  EXPECT_EQ(sampling.min_p, std::nullopt);
  const std::string printed = print_config(config);
  for (const char* line : {"temperature: 0\n", "top_p: auto\n", "top_k: 40\n"})
    EXPECT_THAT(printed, HasSubstr(line));
  EXPECT_EQ(parse(printed).value().router.sampling.top_k, 40u);
  const auto changed =
      parse("model: {path: m}\n", {{"TANDEM_ROUTER_SAMPLING_TEMPERATURE", "0.2"}}).value();
  EXPECT_EQ(changed.router.sampling.temperature, 0.2);
  for (const char* value : {"2.5", "-1", "nan", "'0.5'", "off", "[]"})
    EXPECT_THAT(refusal("model: {path: m}\nrouter: {sampling: {temperature: " + std::string(value) +
                        "}}\n"),
                HasSubstr("router.sampling.temperature"))
        << value;
  EXPECT_THAT(refusal("model: {path: m}\nrouter: {sampling: {top_k: 1.5}}\n"),
              HasSubstr("router.sampling.top_k"));
}

TEST(ClusterFile, VariablesOverrideTheFile) {
  const Environment environment{{"TANDEM_MODEL_PATH", "rel/model"},
                                {"TANDEM_ROUTER_HTTP_PORT", "9000"},
                                {"TANDEM_ROUTER_HTTP_IDLE_TIMEOUT", "5m"},
                                {"TANDEM_ROUTER_HTTP_API_KEYS", "a, b"},
                                {"TANDEM_PREFILL_0_THREADS", "3"},
                                {"TANDEM_DECODE_0_CPUS", "1,2"},
                                {"TANDEM_SOMETHING_ELSE", "x"},
                                {"PATH", "/bin"}};
  const auto config = parse("router: {http: {port: 1}}\n", environment).value();
  EXPECT_EQ(config.model.path, "rel/model");
  EXPECT_EQ(config.router.http.port, 9000);
  EXPECT_EQ(config.router.http.idle_timeout, std::chrono::minutes(5));
  EXPECT_THAT(config.router.http.api_keys, ElementsAre("a", "b"));
  EXPECT_EQ(config.prefill[0].threads, 3u);
  EXPECT_THAT(config.decode[0].cpus, ElementsAre(1, 2));
}

TEST(ClusterFile, BadVariablesAreNamed) {
  const std::string model = "model: {path: m}\n";
  EXPECT_THAT(refusal(model, {{"TANDEM_ROUTER_HTTP_PORT", "http"}}),
              HasSubstr("environment variable TANDEM_ROUTER_HTTP_PORT: router.http.port: 'http'"));
  EXPECT_THAT(refusal(model, {{"TANDEM_ROUTER_HTTP_PROT", "1"}}),
              HasSubstr("did you mean TANDEM_ROUTER_HTTP_PORT?"));
  EXPECT_THAT(refusal(model, {{"TANDEM_PREFILL_1_THREADS", "1"}}),
              HasSubstr("TANDEM_PREFILL_1_THREADS: belongs to no key"));
  // A section as a whole has no variable: TANDEM_MODEL is meant for model.path.
  const std::string section = refusal(model, {{"TANDEM_MODEL", "m"}});
  EXPECT_THAT(section, HasSubstr("environment variable TANDEM_MODEL: belongs to no key"));
  EXPECT_THAT(section, Not(HasSubstr("did you mean TANDEM_MODEL?")));
}

TEST(ClusterFile, ServiceLinksOfKubernetesAreNobodysSetting) {
  const Environment environment{{"TANDEM_ROUTER_SERVICE_HOST", "10.0.0.1"},
                                {"TANDEM_ROUTER_SERVICE_PORT", "80"},
                                {"TANDEM_ROUTER_PORT", "tcp://10.0.0.1:80"},
                                {"TANDEM_ROUTER_PORT_80_TCP_ADDR", "10.0.0.1"},
                                {"TANDEM_ROUTER_HTTP_SERVICE_HOST", "10.0.0.2"},
                                {"TANDEM_ROUTER_HTTP_PORT", "tcp://10.0.0.2:80"}};
  const auto config = parse("model: {path: m}\n", environment);
  ASSERT_TRUE(config) << config.error().detail;
  EXPECT_EQ(config->router.http.port, 8000);
}

TEST(ClusterFile, UnknownKeysNameFileLineAndTheNearestKey) {
  EXPECT_THAT(refusal("model: {path: m}\nrouter:\n  http:\n    prot: 1\n"),
              HasSubstr("c.yaml:4: router.http.prot: unknown key; did you mean router.http.port?"));
  EXPECT_THAT(refusal("model: {path: m}\nruoter: {}\n"),
              HasSubstr("c.yaml:2: ruoter: unknown key; did you mean router?"));
  EXPECT_THAT(refusal("model: {path: m}\nrouter: {idle_timeout: 3s}\n"),
              HasSubstr("did you mean router.http.idle_timeout?"));
  EXPECT_THAT(refusal("model: {path: m}\ndecode:\n- name: a\n- nmae: b\n"),
              HasSubstr("c.yaml:4: decode[1].nmae: unknown key; did you mean decode[1].name?"));
  EXPECT_THAT(refusal("model: {path: m}\nlog: {" + std::string(500, 'q') + ": 1}\n"),
              HasSubstr("unknown key"));
}

TEST(ClusterFile, WrongTypesUnitsAndRangesAreRefused) {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const auto& [text, message] : std::initializer_list<Case>{
           {"router: {http: {port: 65536}}",
            "router.http.port: 65536 is out of range; allowed are 0 to 65535"},
           {"router: {http: {port: -1}}", "-1 is out of range"},
           {"router: {http: {port: 80.5}}", "'80.5' is not a whole number"},
           {"router: {http: {port: \"80\"}}", "remove the quotes"},
           {"router: {http: {port: 99999999999999999999}}", "too large"},
           {"router: {http: {port: [80]}}", "wants a single value, not a list"},
           {"router: {http: {port: 08000}}", "'08000' begins with a zero"},
           {"router: {http: {port: }}", "has no value"},
           {"router: {http: {idle_timeout: 3}}", "'3' has no unit"},
           {"router: {http: {idle_timeout: 3MiB}}", "not a unit of a duration"},
           {"router: {http: {idle_timeout: 0s}}", "0s is out of range; allowed are 1ms to 24h"},
           {"router: {http: {max_body: 8}}", "'8' has no unit"},
           {"router: {http: {max_body: 8s}}", "not a unit of a size"},
           {"router: {http: {api_keys: sk}}", "wants a list, such as [sk-one, sk-two]"},
           {"router: {http: {api_keys: [[a]]}}", "router.http.api_keys[0]: wants a single value"},
           {"router: {http: {cors_origins: [\"a/b\"]}}", "is not an origin"},
           {"router: 5", "router: is a section of keys, not a single value"},
           {"kv: {format: int5}", "'int5' is none of auto, f32, bf16, int8, k8v4, int4"},
           {"kv: {prefix_cache: yes}", "wants true or false, not 'yes'"},
           {"kv: {prefix_cache: \"true\"}", "wants true or false"},
           {"decode: 2", "decode: is a list of sections"},
           {"decode: [5]", "decode[0]: is a section of keys"},
           {"decode: [{cpus: [a]}]", "'a' is not a whole number"},
           {"decode: [{router: nowhere}]", "decode[0].router: 'nowhere' has no port"},
           {"decode: [{name: \"a b\"}]", "is not a name"},
           {"decode: [{name: \"a\\nb\"}]", "control characters"},
           {"decode: [{name: a}, {name: a}]", "'a' is the name of decode[0] too"},
           {"decode: [{name: router}]", "'router' means another process"},
           {"prefill: [{name: supervisor}]", "'supervisor' means another process"},
           {"decode: [{cpus: [0, 0]}]", "names a CPU twice"},
           {"decode: [{cpus: [0], threads: 2}]", "decode[0].threads"},
           {"prefill: [{chunk_tokens: 4096}]", "must not be above max_batch_tokens"},
           {"decode: [{device: gpu}]", "'gpu' is not a device; write cpu, cuda or cuda:N"},
           {"prefill: [{device: 'cuda:x'}]", "'cuda:x' is not a device"},
           {"decode: [{gpu_memory_utilization: 1.5}]", "1.5 is out of range"},
           {"prefill: [{quantization: fp8}]", "fp8 is for GPUs, and device is cpu"},
           {"prefill: [{device: cuda, quantization: int3}]", "'int3' is none of none, fp8"},
           {"router: {http: {tls: {key: k}}}", "needs both a certificate and a key"},
           {"router: {http: {port: 7070}}", "is router.http.port too"},
           {"router: {enabled: false}\nprefill: []\ndecode: []", "would run nothing"},
       }) {
    EXPECT_THAT(refusal("model: {path: m}\n" + std::string(text) + "\n"),
                AllOf(HasSubstr("c.yaml:"), HasSubstr(message)))
        << text;
  }
}

TEST(ClusterFile, TheModelIsRequired) {
  EXPECT_THAT(refusal(""), HasSubstr("c.yaml: model.path: is required, such as models/chat-6m"));
  EXPECT_THAT(refusal("model:\n"), HasSubstr("model.path: is required"));
  EXPECT_THAT(refusal("model: {path: \"\"}\n"), HasSubstr("must not be empty"));
  EXPECT_THAT(refusal("- a\n"), HasSubstr("the file holds a list"));
  EXPECT_THAT(refusal("just text\n"), HasSubstr("the file holds a single value"));
}

TEST(ClusterFile, AllProblemsAreToldAtOnce) {
  const std::string text = refusal("model: {path: m}\nlog: {levle: x}\nkv: {memory: 5}\n");
  EXPECT_THAT(text, AllOf(HasSubstr("c.yaml:2"), HasSubstr("c.yaml:3")));
}

TEST(PrintConfig, ParsesBackToTheSame) {
  for (const std::string_view text : {std::string_view("model: {path: m}\n"), kFull}) {
    const auto config = parse(text).value();
    const std::string printed = print_config(config, Secrets::kShow);
    const auto again = parse(printed);
    ASSERT_TRUE(again) << again.error().detail << "\n" << printed;
    EXPECT_EQ(print_config(*again, Secrets::kShow), printed);
    // Independent of the printer: fields chosen by hand.
    EXPECT_EQ(again->model.path, config.model.path);
    EXPECT_EQ(again->router.http.api_keys, config.router.http.api_keys);
    EXPECT_EQ(again->router.control.shared_key, config.router.control.shared_key);
    EXPECT_EQ(again->prefill.size(), config.prefill.size());
    EXPECT_EQ(again->decode.size(), config.decode.size());
    EXPECT_EQ(again->kv.memory, config.kv.memory);
  }
}

TEST(PrintConfig, HidesSecretsAndStaysValid) {
  const std::string printed = print_config(parse(kFull).value());
  EXPECT_THAT(printed, AllOf(Not(HasSubstr("sk-1")), Not(HasSubstr("s3cret"))));
  EXPECT_TRUE(parse(printed)) << printed;
}

TEST(PrintConfig, EscapesText) {
  const auto config = parse("model: {path: m, id: 'a\"b\\c: #d \xc3\xa9'}\n").value();
  EXPECT_EQ(parse(print_config(config)).value().model.id, "a\"b\\c: #d \xc3\xa9");
}

TEST(Docs, CommittedFileIsCurrent) {
  std::ifstream file(TANDEM_SOURCE_DIR "/docs/configuration.md", std::ios::binary);
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(committed.str(), generate_config_docs())
      << "run: tandem-config-docs > docs/configuration.md";
}

TEST(Docs, EveryVariableIsUniqueAndEveryExampleIsDocumented) {
  std::istringstream docs(generate_config_docs());
  std::set<std::string> variables;
  std::string line;
  while (std::getline(docs, line)) {
    const size_t at = line.find("<br>`TANDEM_");
    if (at == std::string::npos) continue;
    const size_t begin = at + 5;
    const std::string variable = line.substr(begin, line.find('`', begin) - begin);
    EXPECT_TRUE(variables.insert(variable).second) << variable;
    EXPECT_THAT(line, Not(HasSubstr("| `` |"))) << "no example: " << line;
  }
  EXPECT_GT(variables.size(), 50u);
}

TEST(GpuMemoryShare, NodesOfOneFileOnOneCardDivideIt) {
  const auto config = parse(R"(
model: {path: m}
prefill: [{device: cuda}, {device: 'cuda:1'}]
decode: [{device: 'cuda:0'}, {device: cpu}, {device: 'cuda:1', gpu_memory_utilization: 0.3}]
)")
                          .value();
  EXPECT_DOUBLE_EQ(gpu_memory_share(config, config.prefill[0]), 0.45);  // `cuda` is cuda:0
  EXPECT_DOUBLE_EQ(gpu_memory_share(config, config.decode[0]), 0.45);
  EXPECT_DOUBLE_EQ(gpu_memory_share(config, config.prefill[1]), 0.45);
  EXPECT_DOUBLE_EQ(gpu_memory_share(config, config.decode[2]), 0.3);  // as it says
}

TEST(GpuMemoryShare, NodesThatTogetherTakeMoreThanTheirCardAreRefused) {
  const auto of = [](const std::string& prefill, const std::string& decode) {
    return parse("model: {path: m}\nprefill: [{device: cuda, " + prefill +
                 "}]\ndecode: [{device: 'cuda:0', " + decode + "}]\n");
  };
  EXPECT_TRUE(of("gpu_memory_utilization: 0.5", "gpu_memory_utilization: 0.5"));
  EXPECT_TRUE(of("gpu_memory_utilization: 0.9", "kv_blocks: 100"));  // not by shares
  const auto both = of("gpu_memory_utilization: 0.7", "gpu_memory_utilization: 0.6");
  ASSERT_FALSE(both);
  for (const char* part : {"decode[0].gpu_memory_utilization", "cuda:0", "0.70 (prefill-0)",
                           "0.60 (decode-0)", "add up to"})
    EXPECT_THAT(both.error().detail, HasSubstr(part));
  // The other one's default counts too.
  EXPECT_FALSE(of("gpu_memory_utilization: 0.9", "threads: 1"));
  EXPECT_TRUE(
      parse("model: {path: m}\n"
            "prefill: [{device: 'cuda:1', gpu_memory_utilization: 0.9}]\n"
            "decode: [{device: 'cuda:0', gpu_memory_utilization: 0.9}]\n"));
}

TEST(CpuTail, IsThereWhereTheFileAsksForIt) {
  const std::string nodes = "model: {path: m}\ndecode: [{device: cuda}, {device: cpu}]\n";
  const auto of = [&](const std::string& tail) {
    const auto config = parse(nodes + tail).value();
    return std::pair(has_cpu_tail(config, config.decode[0]),
                     has_cpu_tail(config, config.decode[1]));
  };
  EXPECT_EQ(of(""), std::pair(false, false));
  EXPECT_EQ(of("cpu_tail: {enabled: auto}"), std::pair(true, false));
  EXPECT_EQ(of("cpu_tail: {enabled: true}"), std::pair(true, true));
  EXPECT_EQ(of("cpu_tail: {enabled: false}"), std::pair(false, false));
  const auto config = parse(nodes + "cpu_tail: {after_tokens: 100, memory: 16GiB}").value();
  EXPECT_EQ(config.cpu_tail.after_tokens, 100U);
  EXPECT_EQ(config.cpu_tail.memory, gib(16));
}

TEST(CpuTail, NonsenseIsRefused) {
  const std::string model = "model: {path: m}\n";
  EXPECT_THAT(refusal(model + "cpu_tail: {enabled: maybe}"),
              AllOf(HasSubstr("cpu_tail.enabled"), HasSubstr("auto, true")));
  EXPECT_THAT(refusal(model + "cpu_tail: {free_below: 4GiB, return_above: 2GiB}"),
              AllOf(HasSubstr("cpu_tail.return_above"), HasSubstr("4GiB")));
  EXPECT_THAT(refusal(model + "decode: []\ncpu_tail: {enabled: true}"),
              HasSubstr("no decode node"));
  EXPECT_THAT(refusal(model + "cpu_tail: {memory: 0B}"), HasSubstr("cpu_tail.memory"));
  EXPECT_THAT(refusal(model + "cpu_tail: {after_token: 5}"), HasSubstr("after_tokens"));
}

class ConfigFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/tandem-config-XXXXXX";
    folder_ = mkdtemp(pattern);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  std::filesystem::path folder_;
};

TEST_F(ConfigFiles, RelativePathsCountFromTheFile) {
  std::filesystem::create_directory(folder_ / "model");
  const auto config = load_cluster_config(write("c.yaml", "model: {path: model}\n"), {});
  ASSERT_TRUE(config) << config.error().detail;
  EXPECT_EQ(config->model.path, (folder_ / "model").string());
}

TEST_F(ConfigFiles, FoldersOfLibrariesCountFromTheFile) {
  const std::string model = "model: {path: .}\ngpu: {libraries: [lib, /opt/lib]}\n";
  const auto config = load_cluster_config(write("c.yaml", model), {});
  ASSERT_TRUE(config) << config.error().detail;
  EXPECT_THAT(config->gpu.libraries, ElementsAre((folder_ / "lib").string(), "/opt/lib"));
  const auto variable =
      load_cluster_config(write("c.yaml", model), {{"TANDEM_GPU_LIBRARIES", "x"}});
  EXPECT_THAT(variable->gpu.libraries, ElementsAre("x"));
}

TEST_F(ConfigFiles, EveryKeyHasAnOrigin) {
  const std::string path = write("c.yaml", "model: {path: .}\ndecode:\n- name: d\n  threads: 3\n");
  const auto file = load_cluster_file(path, {{"TANDEM_LOG_LEVEL", "debug"}});
  ASSERT_TRUE(file) << file.error().detail;
  EXPECT_EQ(file->config.decode[0].threads, 3U);
  EXPECT_EQ(file->origin("decode[0].threads"), path + ":4");
  EXPECT_EQ(file->origin("decode[0].cpus"), path + ":3");  // what it stands in
  EXPECT_EQ(file->origin("log.level"), "environment variable TANDEM_LOG_LEVEL");
  EXPECT_EQ(file->origin("kv.memory"), path);
}

TEST_F(ConfigFiles, MissingFilesAndModelsAreNamedWithTheirKey) {
  EXPECT_THAT(load_cluster_config((folder_ / "no.yaml").string(), {}).error().detail,
              HasSubstr("no.yaml: there is no such file"));
  EXPECT_THAT(load_cluster_config(folder_.string(), {}).error().detail, HasSubstr("is a folder"));
  const std::string path = write("c.yaml", "model:\n  path: nope\n");
  EXPECT_THAT(
      load_cluster_config(path, {}).error().detail,
      HasSubstr(path + ":2: model.path: there is no model at " + (folder_ / "nope").string()));
}

TEST_F(ConfigFiles, KeysComeFromBothPlacesAndAnEmptyFileIsRefused) {
  HttpSettings http;
  http.api_keys = {"one"};
  http.api_keys_file = write("keys", "# ours\n\n  two \r\nthree\n");
  EXPECT_THAT(load_api_keys(http).value(), ElementsAre("one", "two", "three"));
  http.api_keys_file = write("empty", "# nothing\n");
  EXPECT_FALSE(load_api_keys(http));
  http.api_keys_file = (folder_ / "missing").string();
  EXPECT_FALSE(load_api_keys(http));
  ControlSettings control;
  control.shared_key_file = write("shared", "abc\n");
  EXPECT_EQ(load_shared_key(control).value(), "abc");
}

TEST(ListenPoints, EveryAddressOfAFileHasItsKeyAndVariable) {
  const auto config = parse_cluster_config(R"(
model: {path: /m}
router: {control: {host: 10.0.0.1, port: 71}}
prefill: []
decode: [{name: a}, {name: b, metrics: {port: 91}}]
)",
                                           "file", "/", {});
  ASSERT_TRUE(config) << config.error().detail;
  const auto found = listen_points(*config);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].section, "router.http");
  EXPECT_EQ(found[0].port, 8000);
  EXPECT_EQ(found[1].section, "router.control");
  EXPECT_EQ(found[1].host, "10.0.0.1");
  EXPECT_EQ(found[1].port, 71);
  EXPECT_EQ(found[3].section, "decode[1].metrics");
  EXPECT_EQ(found[3].port, 91);
  EXPECT_EQ(metrics_section(*config, config->decode[1]), "decode[1].metrics");
  const Error named =
      in_section(make_error(ErrorCode::kConfig, "taken", "port"), "decode[1].metrics");
  EXPECT_EQ(named.param, "decode[1].metrics.port");
  EXPECT_EQ(named.detail, "taken; set by decode[1].metrics.port or TANDEM_DECODE_1_METRICS_PORT");
  const Error other = in_section(make_error(ErrorCode::kIo, "no memory"), "router.http");
  EXPECT_EQ(other.detail, "no memory");
}

TEST(CacheFolder, IsTheUsersElseOneOfTheirHome) {
  EXPECT_EQ(cache_folder({{"XDG_CACHE_HOME", "/var/c"}, {"HOME", "/home/u"}}), "/var/c/tandem");
  EXPECT_EQ(cache_folder({{"HOME", "/home/u"}}), "/home/u/.cache/tandem");
  EXPECT_EQ(cache_folder({{"XDG_CACHE_HOME", "relative"}, {"HOME", "/home/u"}}),
            "/home/u/.cache/tandem");
  EXPECT_EQ(cache_folder({{"XDG_CACHE_HOME", ""}, {"HOME", ""}}), "");
  EXPECT_EQ(cache_folder({}), "");
}

}  // namespace
}  // namespace tandem
