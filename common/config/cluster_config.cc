#include "common/config/cluster_config.h"

#include <algorithm>
#include <filesystem>

#include "common/config/units.h"

namespace tandem {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Bounds<uint64_t> kPort{0, 65535};
constexpr Bounds<uint64_t> kCount{1, 1u << 20};
constexpr Bounds<uint64_t> kOptionalTokens{0, 1u << 24};
constexpr Bounds<Duration> kWait{milliseconds(1), hours(24)};

}  // namespace

void describe(SchemaVisitor& v, ModelSettings& c) {
  v.path({.key = "path",
          .doc = "Hugging Face folder or GGUF file.",
          .example = "models/chat-6m",
          .required = true},
         c.path);
  v.text({.key = "id",
          .doc = "Name that clients ask for. Empty: the last part of `path`.",
          .example = "chat-6m"},
         c.id);
  v.texts({.key = "aliases",
           .doc = "Further names that answer for the same model.",
           .example = "[default]"},
          c.aliases);
  v.choice({.key = "load_format",
            .doc = "`dummy` makes random weights from config.json alone, to measure speed.",
            .example = "dummy"},
           c.load_format, kLoadFormatNames);
  v.choice(
      {.key = "dtype",
       .doc = "Type of the weights in memory. `auto`: bf16 where the files hold 16 bits or less.",
       .example = "bf16"},
      c.dtype, kWeightTypeNames);
  v.integer({.key = "max_context",
             .doc = "Longest prompt plus output, in tokens. 0: what the model allows.",
             .example = "4096"},
            c.max_context, kOptionalTokens);
}

void describe(SchemaVisitor& v, KvSettings& c) {
  v.choice({.key = "format",
            .doc = "How keys and values are stored and shipped. `auto`: the weights' own type.",
            .example = "int8"},
           c.format, kKvFormatChoiceNames);
  v.size({.key = "memory",
          .doc = "Memory for the KV blocks of each node. 0B: 512MiB on CPU, on a GPU what "
                 "gpu_memory_utilization leaves.",
          .example = "2GiB"},
         c.memory, {ByteSize{0}, ByteSize{uint64_t{1} << 44}});
  v.integer({.key = "blocks",
             .doc = "Number of 16-token blocks of each node. 0: as many as `memory` holds.",
             .example = "4096"},
            c.blocks, {0, 1u << 30});
  v.boolean({.key = "prefix_cache",
             .doc = "Keep finished blocks and share them between prompts with the same beginning.",
             .example = "false"},
            c.prefix_cache);
}

void describe(SchemaVisitor& v, TlsSettings& c) {
  v.path({.key = "certificate",
          .doc = "PEM file with the certificate chain. Empty: plain HTTP.",
          .example = "/etc/tandem/tls.crt"},
         c.certificate);
  v.path({.key = "key", .doc = "PEM file with the private key.", .example = "/etc/tandem/tls.key"},
         c.key);
}

void describe(SchemaVisitor& v, HttpSettings& c) {
  v.text({.key = "host",
          .doc = "Address to listen on; 0.0.0.0 or :: for every interface.",
          .example = "0.0.0.0",
          .required = true},
         c.host);
  v.integer({.key = "port", .doc = "Port to listen on. 0: any free one.", .example = "8000"},
            c.port, kPort);
  v.integer({.key = "threads",
             .doc = "Threads that serve connections. 0: two from four CPUs on; with fewer, the "
                    "cluster's thread serves them.",
             .example = "2"},
            c.threads, {0, 256});
  v.size({.key = "max_body", .doc = "Largest request body; more is 413.", .example = "8MiB"},
         c.max_body, {kib(1), gib(1)});
  v.size({.key = "max_header",
          .doc = "Largest request line and headers together; more is 431.",
          .example = "32KiB"},
         c.max_header, {kib(1), mib(1)});
  v.integer({.key = "max_connections",
             .doc = "Connections open at once; further ones get 503 at once. Fewer where the "
                    "limit on open files (ulimit -n) does not allow as many.",
             .example = "4096"},
            c.max_connections, kCount);
  v.duration(
      {.key = "idle_timeout",
       .doc = "How long an idle connection is kept. Longer than the clients' own, or they see "
              "resets.",
       .example = "120s"},
      c.idle_timeout, kWait);
  v.duration({.key = "header_timeout",
              .doc = "How long the headers of a request may take to arrive.",
              .example = "10s"},
             c.header_timeout, kWait);
  v.duration({.key = "body_timeout",
              .doc = "How long a request body may take to arrive.",
              .example = "30s"},
             c.body_timeout, kWait);
  v.duration({.key = "write_timeout",
              .doc = "How long one write to a client may stall before it is cut off.",
              .example = "30s"},
             c.write_timeout, kWait);
  v.section({.key = "tls", .doc = "HTTPS."}, c.tls);
  v.texts(
      {.key = "api_keys",
       .doc = "Bearer keys that are let in. None here and none in `api_keys_file`: no key needed.",
       .example = "[sk-one, sk-two]",
       .secret = true},
      c.api_keys);
  v.path({.key = "api_keys_file",
          .doc = "File with one key a line; empty lines and lines that begin with # do not count.",
          .example = "/etc/tandem/api-keys"},
         c.api_keys_file);
  v.texts({.key = "cors_origins",
           .doc = "Web origins whose pages may call the API; `*` for any, an empty list for none.",
           .example = "[https://app.example]"},
          c.cors_origins);
}

void describe(SchemaVisitor& v, ControlSettings& c) {
  v.text({.key = "host",
          .doc = "Address that nodes dial; 0.0.0.0 or :: for every interface.",
          .example = "0.0.0.0",
          .required = true},
         c.host);
  v.integer({.key = "port", .doc = "Port that nodes dial. 0: any free one.", .example = "7070"},
            c.port, kPort);
  v.text(
      {.key = "shared_key",
       .doc =
           "Secret that nodes prove they know before they are admitted. Empty: none is asked for.",
       .example = "correct-horse-battery",
       .secret = true},
      c.shared_key);
  v.path({.key = "shared_key_file",
          .doc = "File whose first line is the shared key.",
          .example = "/etc/tandem/shared-key"},
         c.shared_key_file);
  v.duration({.key = "handshake_timeout",
              .doc = "How long a node may take to introduce itself.",
              .example = "5s"},
             c.handshake_timeout, kWait);
  v.duration({.key = "heartbeat_interval",
              .doc = "How often a node reports its load.",
              .example = "500ms"},
             c.heartbeat_interval, {milliseconds(10), seconds(60)});
  v.duration({.key = "peer_timeout",
              .doc = "Silence after which the other side is taken for dead.",
              .example = "5s"},
             c.peer_timeout, {milliseconds(100), hours(1)});
}

void describe(SchemaVisitor& v, AdmissionSettings& c) {
  v.integer({.key = "prefill_queue",
             .doc = "Requests that may wait for a prefill node; more get 429.",
             .example = "256"},
            c.prefill_queue, kCount);
  v.duration({.key = "deadline",
              .doc = "How long a request waits for prefill before a decode node does it.",
              .example = "3s"},
             c.deadline, kWait);
  v.integer({.key = "decode_queue",
             .doc = "Requests that may wait for room on the decode nodes; more get 429.",
             .example = "256"},
            c.decode_queue, kCount);
  v.integer({.key = "max_retries",
             .doc = "Times a request is started again after a node failed.",
             .example = "2"},
            c.max_retries, {0, 100});
  v.duration({.key = "request_timeout",
              .doc = "Longest life of a request, queueing included.",
              .example = "10m"},
             c.request_timeout, kWait);
}

void describe(SchemaVisitor& v, DispatchSettings& c) {
  v.integer(
      {.key = "local_prefill_below",
       .doc = "Prompts with fewer uncached tokens are prefilled by the decode node itself, longer "
              "ones where their first token is predicted to come a sixth sooner than from the "
              "prefill nodes. 0: only when no prefill node can be used, or past the deadline.",
       .example = "64"},
      c.local_prefill_below, kOptionalTokens);
  v.boolean({.key = "prefix_affinity",
             .doc = "Prefer the nodes that already hold the beginning of a prompt.",
             .example = "false"},
            c.prefix_affinity);
}

void describe(SchemaVisitor& v, LimitsSettings& c) {
  v.integer({.key = "default_max_tokens",
             .doc = "max_tokens of requests that give none. 0: what is left of the context.",
             .example = "512"},
            c.default_max_tokens, kOptionalTokens);
  v.integer({.key = "max_tokens",
             .doc = "Largest max_tokens that is accepted. 0: the context is the only limit.",
             .example = "2048"},
            c.max_tokens, kOptionalTokens);
  v.integer({.key = "max_n", .doc = "Largest number of choices per prompt.", .example = "16"},
            c.max_n, {1, 1024});
  v.integer({.key = "max_prompts", .doc = "Most prompts in one request.", .example = "64"},
            c.max_prompts, {1, 65536});
  v.integer({.key = "max_stop", .doc = "Most stop strings in one request.", .example = "16"},
            c.max_stop, {0, 1024});
  v.integer({.key = "max_logprobs",
             .doc = "Most alternatives per token that logprobs may ask for.",
             .example = "20"},
            c.max_logprobs, {0, 1024});
}

void describe(SchemaVisitor& v, SamplingSettings& c) {
  v.boolean({.key = "from_model",
             .doc = "Take what the model recommends: temperature, top_p, top_k, min_p, "
                    "repetition_penalty and, for chats, max_new_tokens of its "
                    "generation_config.json, or `general.sampling.*` of a GGUF file.",
             .example = "false"},
            c.from_model);
  v.number_or_auto({.key = "temperature",
                    .doc = "temperature of requests that give none. `auto`: the model's, else 1.",
                    .example = "0.7"},
                   c.temperature, {0, 2});
  v.number_or_auto(
      {.key = "top_p", .doc = "Likewise top_p. `auto`: the model's, else 1.", .example = "0.9"},
      c.top_p, {0, 1});
  v.integer_or_auto({.key = "top_k",
                     .doc = "Likewise top_k; 0 is off. `auto`: the model's, else 0.",
                     .example = "40"},
                    c.top_k, {0, 1u << 30});
  v.number_or_auto(
      {.key = "min_p", .doc = "Likewise min_p. `auto`: the model's, else 0.", .example = "0.05"},
      c.min_p, {0, 1});
  v.number_or_auto({.key = "repetition_penalty",
                    .doc = "Likewise repetition_penalty. `auto`: the model's, else 1.",
                    .example = "1.1"},
                   c.repetition_penalty, {0.01, 100});
}

void describe(SchemaVisitor& v, RouterSettings& c) {
  v.boolean({.key = "enabled",
             .doc = "Whether this box runs the router. Set to false where only nodes run.",
             .example = "false"},
            c.enabled);
  v.section({.key = "http", .doc = "The API's side."}, c.http);
  v.section({.key = "control", .doc = "The nodes' side."}, c.control);
  v.section({.key = "admission", .doc = "Queues and how long requests may wait in them."},
            c.admission);
  v.section({.key = "dispatch", .doc = "Which node does what."}, c.dispatch);
  v.section({.key = "limits", .doc = "What one request may ask for."}, c.limits);
  v.section({.key = "sampling", .doc = "How tokens are drawn for requests that do not say."},
            c.sampling);
  v.duration(
      {.key = "drain_timeout",
       .doc = "How long open answers may go on after SIGTERM; what is left ends with an error.",
       .example = "25s"},
      c.drain_timeout, {milliseconds(0), hours(1)});
}

void describe(SchemaVisitor& v, MetricsEndpointSettings& c) {
  v.text({.key = "host",
          .doc = "Address of the node's own /metrics and /health.",
          .example = "0.0.0.0",
          .required = true},
         c.host);
  v.integer({.key = "port", .doc = "Port to listen on. 0: any free one.", .example = "9101"},
            c.port, kPort);
}

void describe(SchemaVisitor& v, TransportSettings& c) {
  v.choice(
      {.key = "kind",
       .doc =
           "How KV travels. `cuda_ipc`: between GPUs of one host, or on one GPU; `nccl`: "
           "between GPUs of one host, one process each; `ucx`: between any processes and "
           "hosts; `inproc`: within one process only. `auto`: `cuda_ipc` where every node of the "
           "file is on a GPU and those of prefill and decode nodes reach each other over "
           "NVLink (a quarter of the links at least), a PCIe switch or as one card, else "
           "`ucx`; log, metrics and status page say which and why. GPUs of several hosts "
           "need `ucx`. All nodes need the same.",
       .example = "cuda_ipc"},
      c.kind, kTransportChoiceNames);
  v.text(
      {.key = "ucx_tls",
       .doc =
           "Ways KV may travel with `ucx`, in the words of UCX_TLS. Empty: shm,tcp,self. The words "
           "for shared memory (shm, posix, sysv, cma) all let processes of one host, network "
           "namespace and user share memory without UCX, which carries the rest. With cuda_copy "
           "and cuda_ipc among them, a UCX that knows CUDA moves KV between GPUs of one host "
           "without a detour through host memory; one that does not says so in the log.",
       .example = "tcp"},
      c.ucx_tls);
}

void describe(SchemaVisitor& v, NodeSettings& c) {
  v.text({.key = "name",
          .doc = "Unique name, as shown in logs and metrics. Empty: the role and a number.",
          .example = "node-a"},
         c.name);
  v.text({.key = "device",
          .doc = "Where the model runs: `cpu`, `cuda` (the first card) or `cuda:N`. Cards count as "
                 "CUDA_VISIBLE_DEVICES leaves them; `tandem doctor` lists them.",
          .example = "cuda:0",
          .required = true},
         c.device);
  v.number({.key = "gpu_memory_utilization",
            .doc = "Share of the card's memory that this node may use, weights included; the KV "
                   "blocks take what is left of it unless their number is given. 0: 0.9, divided "
                   "among the nodes of this file on the same card.",
            .example = "0.45"},
           c.gpu_memory_utilization, {0, 1});
  v.choice({.key = "quantization",
            .doc = "How a Hopper card keeps the model's projections. `fp8`: 8 bits and a scale for "
                   "each output channel; steps of more than 48 rows quantize their inputs as well, "
                   "row by row. Half the memory, faster, slightly other answers. `none`: as "
                   "model.dtype says.",
            .example = "fp8"},
           c.quantization, kQuantizationChoiceNames);
  v.integer({.key = "threads",
             .doc = "Compute threads. 0: an equal share of this box's CPUs.",
             .example = "8"},
            c.threads, {0, 4096});
  v.integers({.key = "cpus",
              .doc = "CPUs to pin the compute threads to, one each. Empty: chosen at start.",
              .example = "[0, 1]"},
             c.cpus, {0, 65535});
  v.text({.key = "router",
          .doc = "host:port of the router's control side. Empty: router.control of this file.",
          .example = "router.example:7070"},
         c.router);
  v.section({.key = "metrics", .doc = "The node's own HTTP endpoint."}, c.metrics);
  v.section({.key = "transport", .doc = "How KV travels between nodes."}, c.transport);
  v.integer({.key = "max_batch_tokens",
             .doc = "Most tokens that one forward pass works on.",
             .example = "4096"},
            c.max_batch_tokens, {16, 1u << 20});
  v.integer({.key = "max_sequences", .doc = "Most requests in work at once.", .example = "64"},
            c.max_sequences, {1, 65536});
  v.integer({.key = "queue",
             .doc = "Requests that may wait for a place among those in work; one more is refused "
                    "and goes elsewhere.",
             .example = "256"},
            c.queue, kCount);
  v.duration({.key = "drain_timeout",
              .doc = "How long requests in work may go on after SIGTERM; the router takes what is "
                     "left elsewhere.",
              .example = "25s"},
             c.drain_timeout, {milliseconds(0), hours(1)});
  v.size({.key = "kv_memory",
          .doc = "Memory for this node's KV blocks. 0B: kv.memory.",
          .example = "1GiB"},
         c.kv_memory, {ByteSize{0}, ByteSize{uint64_t{1} << 44}});
  v.integer({.key = "kv_blocks",
             .doc = "Number of this node's KV blocks. 0: kv.blocks.",
             .example = "4096"},
            c.kv_blocks, {0, 1u << 30});
}

void describe(SchemaVisitor& v, PrefillNodeSettings& c) {
  describe(v, static_cast<NodeSettings&>(c));
  v.integer({.key = "chunk_tokens",
             .doc = "Most tokens of one prompt in a forward pass; longer prompts take several.",
             .example = "512"},
            c.chunk_tokens, {16, 1u << 20});
}

void describe(SchemaVisitor& v, DecodeNodeSettings& c) {
  describe(v, static_cast<NodeSettings&>(c));
  v.integer({.key = "chunk_tokens",
             .doc = "Most tokens of a prompt prefilled here that join one decode step.",
             .example = "256"},
            c.chunk_tokens, {16, 1u << 20});
  v.duration({.key = "step_budget",
              .doc = "How long a decode step may take, prompts prefilled in it included: they get "
                     "fewer rows so that 99 steps in 100 keep to it. What decoding alone takes is "
                     "not limited.",
              .example = "25ms"},
             c.step_budget, {milliseconds(1), seconds(60)});
  v.duration(
      {.key = "queue_ageing",
       .doc = "Waiting this long counts as much as being the longest request; no request starves.",
       .example = "1s"},
      c.queue_ageing, kWait);
  v.duration({.key = "lease",
              .doc = "How long reserved blocks wait for their KV before they are taken back.",
              .example = "30s"},
             c.lease, {milliseconds(100), hours(1)});
}

void describe(SchemaVisitor& v, CpuTailSettings& c) {
  constexpr Bounds<ByteSize> kMemory{ByteSize{0}, ByteSize{uint64_t{1} << 44}};
  v.choice(
      {.key = "enabled",
       .doc =
           "Whether decode nodes load the model for the CPU too, into host memory. `auto`: those "
           "on a GPU do.",
       .example = "true"},
      c.enabled, kCpuTailChoiceNames);
  v.integer(
      {.key = "after_tokens",
       .doc = "Answers longer than this may go on on the CPU when the device's KV memory gets "
              "short. Any answer may when it is used up.",
       .example = "512"},
      c.after_tokens, kOptionalTokens);
  v.size({.key = "free_below",
          .doc = "KV memory of the device below which long answers leave. 0B: 2GiB, or a quarter "
                 "of all where that is less.",
          .example = "2GiB"},
         c.free_below, kMemory);
  v.size({.key = "return_above",
          .doc = "Free KV memory of the device from which they come back. 0B: twice free_below, or "
                 "halfway between it and all where that is less.",
          .example = "4GiB"},
         c.return_above, kMemory);
  v.integer({.key = "threads",
             .doc = "Threads that compute them. 0: an equal share of this box's CPUs.",
             .example = "8"},
            c.threads, {0, 4096});
  v.size({.key = "memory",
          .doc = "Host memory for their KV, of each decode node.",
          .example = "16GiB"},
         c.memory, {mib(1), ByteSize{uint64_t{1} << 44}});
  v.choice({.key = "format",
            .doc = "How it is stored there; KV in another format is encoded anew on the way. "
                   "`auto`: as on the device.",
            .example = "int8"},
           c.format, kKvFormatChoiceNames);
}

void describe(SchemaVisitor& v, GpuSettings& c) {
  v.paths({.key = "libraries",
           .doc = "Folders with NVIDIA's libraries (cuBLASLt, NCCL), searched before rpath, "
                  "LD_LIBRARY_PATH and the system.",
           .example = "[/opt/nvidia/cu13/lib]"},
          c.libraries);
  v.path(
      {.key = "cache",
       .doc = "Folder that keeps between starts which of cuBLASLt's algorithms are the fastest on "
              "a card. Empty: $XDG_CACHE_HOME/tandem, else ~/.cache/tandem.",
       .example = "/var/cache/tandem"},
      c.cache);
}

void describe(SchemaVisitor& v, LogSettings& c) {
  v.choice({.key = "level", .doc = "Least severe events that are written.", .example = "debug"},
           c.level, kLogLevelNames);
  v.path({.key = "file",
          .doc = "File to append to. Empty: standard error.",
          .example = "/var/log/tandem.jsonl"},
         c.file);
}

void describe(SchemaVisitor& v, ClusterConfig& c) {
  v.section({.key = "model", .doc = "What is served."}, c.model);
  v.section({.key = "kv", .doc = "Keys and values of the attention, in blocks of 16 tokens."},
            c.kv);
  v.section({.key = "router", .doc = "The process that clients and nodes talk to."}, c.router);
  v.list({.key = "prefill",
          .doc = "Nodes of this box that compute prompts. Absent: one with default settings; `[]`: "
                 "none."},
         c.prefill);
  v.list({.key = "decode",
          .doc = "Nodes of this box that generate. Absent: one with default settings; `[]`: none."},
         c.decode);
  v.section({.key = "cpu_tail",
             .doc = "Long answers go on on the CPU when a decode node's KV memory gets short."},
            c.cpu_tail);
  v.section({.key = "gpu", .doc = "What nodes on NVIDIA cards share."}, c.gpu);
  v.section({.key = "log", .doc = "Events, one JSON object a line."}, c.log);
}

std::string served_model_id(const ModelSettings& model) {
  if (!model.id.empty()) return model.id;
  std::filesystem::path path = std::filesystem::path(model.path).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

double gpu_memory_share(const ClusterConfig& config, const NodeSettings& node) {
  constexpr double kAll = 0.9;
  if (node.gpu_memory_utilization > 0) return node.gpu_memory_utilization;
  const auto own = parse_device(node.device);
  if (!own) return kAll;
  uint32_t sharing = 0;
  auto count = [&](const NodeSettings& other) {
    const auto device = parse_device(other.device);
    if (device && *device == *own) ++sharing;
  };
  for (const NodeSettings& other : config.prefill) count(other);
  for (const NodeSettings& other : config.decode) count(other);
  return kAll / std::max(1U, sharing);
}

bool has_cpu_tail(const ClusterConfig& config, const NodeSettings& node) {
  switch (config.cpu_tail.enabled) {
    case CpuTailChoice::kTrue:
      return true;
    case CpuTailChoice::kFalse:
      return false;
    case CpuTailChoice::kAuto:
      break;
  }
  const auto device = parse_device(node.device);
  return device && device->cuda;
}

std::string router_address(const ClusterConfig& config, const NodeSettings& node) {
  if (!node.router.empty()) return node.router;
  std::string host = config.router.control.host;
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "::") host = "::1";
  return format_host_port(host, config.router.control.port);
}

}  // namespace tandem
