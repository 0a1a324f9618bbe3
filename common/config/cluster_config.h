#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log_level.h"
#include "common/config/schema.h"

namespace tandem {

// One file describes every role of a box. What each key means stands in cluster_config.cc, from
// which docs/configuration.md is made. Plain data: copy freely.

enum class LoadFormat : uint8_t { kAuto, kDummy };
inline constexpr std::array<std::string_view, 2> kLoadFormatNames{"auto", "dummy"};

enum class WeightType : uint8_t { kAuto, kFloat32, kBf16 };
inline constexpr std::array<std::string_view, 3> kWeightTypeNames{"auto", "float32", "bf16"};

enum class KvFormatChoice : uint8_t { kAuto, kF32, kBf16, kInt8, kK8v4, kInt4, kFp8E4m3 };
inline constexpr std::array<std::string_view, 7> kKvFormatChoiceNames{
    "auto", "f32", "bf16", "int8", "k8v4", "int4", "fp8_e4m3"};

enum class TransportChoice : uint8_t { kAuto, kUcx, kCudaIpc, kNccl, kInproc };
inline constexpr std::array<std::string_view, 5> kTransportChoiceNames{"auto", "ucx", "cuda_ipc",
                                                                       "nccl", "inproc"};

struct ModelSettings {
  std::string path;
  std::string id;  // empty: the folder's or file's name; `served_model_id` resolves it
  std::vector<std::string> aliases;
  LoadFormat load_format = LoadFormat::kAuto;
  WeightType dtype = WeightType::kAuto;
  uint32_t max_context = 0;  // 0: the model's own
};

inline constexpr ByteSize kDefaultKvMemory = mib(512);

struct KvSettings {
  KvFormatChoice format = KvFormatChoice::kAuto;
  ByteSize memory{};    // per node; 0: kDefaultKvMemory on CPU, what is left on a GPU
  uint32_t blocks = 0;  // 0: as many as `memory` holds
  bool prefix_cache = true;
};

struct TlsSettings {
  std::string certificate;
  std::string key;
  [[nodiscard]] bool enabled() const { return !certificate.empty(); }
};

struct HttpSettings {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  uint32_t threads = 0;  // 0: two from four CPUs on, else none of its own
  ByteSize max_body = mib(8);
  ByteSize max_header = kib(32);
  uint32_t max_connections = 4096;
  Duration idle_timeout = std::chrono::seconds(120);
  Duration header_timeout = std::chrono::seconds(10);
  Duration body_timeout = std::chrono::seconds(30);
  Duration write_timeout = std::chrono::seconds(30);
  TlsSettings tls;
  std::vector<std::string> api_keys;
  std::string api_keys_file;
  std::vector<std::string> cors_origins{"*"};
};

struct ControlSettings {
  std::string host = "127.0.0.1";
  uint16_t port = 7070;  // 0: any free one
  std::string shared_key;
  std::string shared_key_file;
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  Duration peer_timeout = std::chrono::seconds(5);
};

struct AdmissionSettings {
  uint32_t prefill_queue = 256;
  Duration deadline = std::chrono::seconds(3);
  uint32_t decode_queue = 256;
  uint32_t max_retries = 2;
  Duration request_timeout = std::chrono::minutes(10);
};

struct DispatchSettings {
  uint32_t local_prefill_below = 32;  // uncached prompt tokens
  bool prefix_affinity = true;
};

struct LimitsSettings {
  uint32_t default_max_tokens = 0;  // 0: what is left of the context
  uint32_t max_tokens = 0;          // 0: no limit below the context
  uint32_t max_n = 16;
  uint32_t max_prompts = 64;
  uint32_t max_stop = 16;
  uint32_t max_logprobs = 20;
};

// What requests get that do not say. Empty: the model's, else OpenAI's defaults.
struct SamplingSettings {
  bool from_model = true;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<uint32_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
};

struct RouterSettings {
  bool enabled = true;
  HttpSettings http;
  ControlSettings control;
  AdmissionSettings admission;
  DispatchSettings dispatch;
  LimitsSettings limits;
  SamplingSettings sampling;
  Duration drain_timeout = std::chrono::seconds(10);
};

struct MetricsEndpointSettings {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
};

struct TransportSettings {
  TransportChoice kind = TransportChoice::kAuto;
  std::string ucx_tls;  // as UCX_TLS; empty: shm,tcp,self
};

enum class QuantizationChoice : uint8_t { kNone, kFp8 };
inline constexpr std::array<std::string_view, 2> kQuantizationChoiceNames{"none", "fp8"};

// What prefill and decode nodes share.
struct NodeSettings {
  std::string name;                   // empty in a file: prefill-0, decode-0, …
  std::string device = "cpu";         // as parse_device() reads it
  double gpu_memory_utilization = 0;  // 0: see gpu_memory_share()
  QuantizationChoice quantization = QuantizationChoice::kNone;
  uint32_t threads = 0;        // 0: an equal share of this box's CPUs
  std::vector<uint32_t> cpus;  // empty: not pinned by hand
  std::string router;          // host:port; empty: router.control of this file
  MetricsEndpointSettings metrics;
  TransportSettings transport;
  uint32_t max_batch_tokens = 2048;
  uint32_t max_sequences = 64;
  uint32_t queue = 256;
  Duration drain_timeout = std::chrono::seconds(10);
  ByteSize kv_memory{};    // 0: kv.memory
  uint32_t kv_blocks = 0;  // 0: kv.blocks
};

struct PrefillNodeSettings : NodeSettings {
  uint32_t chunk_tokens = 512;
};

struct DecodeNodeSettings : NodeSettings {
  uint32_t chunk_tokens = 256;  // of a prompt prefilled here, between decode steps
  Duration step_budget = std::chrono::milliseconds(80);
  Duration queue_ageing = std::chrono::seconds(1);
  Duration lease = std::chrono::seconds(30);
};

struct GpuSettings {
  std::vector<std::string> libraries;  // folders, searched first
  std::string cache;                   // folder; empty: cache_folder()
};

enum class CpuTailChoice : uint8_t { kAuto, kTrue, kFalse };
inline constexpr std::array<std::string_view, 3> kCpuTailChoiceNames{"auto", "true", "false"};

struct CpuTailSettings {
  CpuTailChoice enabled = CpuTailChoice::kFalse;
  uint32_t after_tokens = 512;
  ByteSize free_below{};    // 0: see cluster_config.cc
  ByteSize return_above{};  // 0: likewise
  uint32_t threads = 0;     // 0: an equal share of this box's CPUs
  ByteSize memory = gib(4);
  KvFormatChoice format = KvFormatChoice::kAuto;  // auto: the device's
};

struct LogSettings {
  LogLevel level = LogLevel::kInfo;
  std::string file;  // empty: standard error
};

struct ClusterConfig {
  ModelSettings model;
  KvSettings kv;
  RouterSettings router;
  std::vector<PrefillNodeSettings> prefill{PrefillNodeSettings{}};
  std::vector<DecodeNodeSettings> decode{DecodeNodeSettings{}};
  CpuTailSettings cpu_tail;
  GpuSettings gpu;
  LogSettings log;
};

void describe(SchemaVisitor& visitor, ModelSettings& config);
void describe(SchemaVisitor& visitor, KvSettings& config);
void describe(SchemaVisitor& visitor, TlsSettings& config);
void describe(SchemaVisitor& visitor, HttpSettings& config);
void describe(SchemaVisitor& visitor, ControlSettings& config);
void describe(SchemaVisitor& visitor, AdmissionSettings& config);
void describe(SchemaVisitor& visitor, DispatchSettings& config);
void describe(SchemaVisitor& visitor, LimitsSettings& config);
void describe(SchemaVisitor& visitor, SamplingSettings& config);
void describe(SchemaVisitor& visitor, RouterSettings& config);
void describe(SchemaVisitor& visitor, MetricsEndpointSettings& config);
void describe(SchemaVisitor& visitor, TransportSettings& config);
void describe(SchemaVisitor& visitor, NodeSettings& config);
void describe(SchemaVisitor& visitor, PrefillNodeSettings& config);
void describe(SchemaVisitor& visitor, DecodeNodeSettings& config);
void describe(SchemaVisitor& visitor, CpuTailSettings& config);
void describe(SchemaVisitor& visitor, GpuSettings& config);
void describe(SchemaVisitor& visitor, LogSettings& config);
void describe(SchemaVisitor& visitor, ClusterConfig& config);

// The name under which the model is served: model.id, or the last part of model.path.
[[nodiscard]] std::string served_model_id(const ModelSettings& model);

// The part of its card's memory that a node may use: its gpu_memory_utilization, or 0.9 divided
// equally among the nodes of this file on the same card.
[[nodiscard]] double gpu_memory_share(const ClusterConfig& config, const NodeSettings& node);

// Whether this decode node has a CPU engine beside its device.
[[nodiscard]] bool has_cpu_tail(const ClusterConfig& config, const NodeSettings& node);

// host:port that this node dials: its own `router`, or router.control with a wildcard host turned
// into the loopback address.
[[nodiscard]] std::string router_address(const ClusterConfig& config, const NodeSettings& node);

}  // namespace tandem
