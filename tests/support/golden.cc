#include "tests/support/golden.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>
#include <cstring>

#include "common/model/json.h"
#include "common/model/mapped_file.h"
#include "common/model/safetensors.h"

namespace tandem::testing {
namespace {

template <typename T>
std::vector<T> numbers(const boost::json::object& o, std::string_view key) {
  std::vector<T> out;
  const auto* v = o.if_contains({key.data(), key.size()});
  if (v == nullptr) return out;
  for (const auto& n : v->as_array()) out.push_back(n.to_number<T>());
  return out;
}

}  // namespace

Result<std::vector<GoldenCase>> load_golden(const std::filesystem::path& folder) {
  TANDEM_ASSIGN(const auto text, model::read_text_file(folder / "golden.json", 64u << 20));
  TANDEM_ASSIGN(const auto root, model::parse_json(text, (folder / "golden.json").string()));
  TANDEM_ASSIGN(const auto file, model::MappedFile::open(folder / "golden.safetensors"));
  TANDEM_ASSIGN(const auto entries, model::parse_safetensors(file.bytes(), "golden.safetensors"));
  std::map<std::string, std::vector<float>> floats;
  std::map<std::string, std::vector<int32_t>> ints;
  for (const auto& e : entries) {
    if (e.dtype == "F32") {
      auto& v = floats[e.name];
      v.resize(e.bytes.size() / 4);
      std::memcpy(v.data(), e.bytes.data(), e.bytes.size());
    } else if (e.dtype == "I32") {
      auto& v = ints[e.name];
      v.resize(e.bytes.size() / 4);
      std::memcpy(v.data(), e.bytes.data(), e.bytes.size());
    }
  }
  std::vector<GoldenCase> out;
  for (const auto& c : root.at("cases").as_array()) {
    const boost::json::object& o = c.as_object();
    const std::string j = std::to_string(out.size());
    out.push_back({numbers<TokenId>(o, "prompt"), numbers<TokenId>(o, "greedy"),
                   numbers<float>(o, "greedy_margin"), floats["logits_" + j],
                   floats["logits_all_" + j], ints["top1_" + j]});
  }
  return out;
}

double relative_l2(const float* a, const std::vector<float>& b) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    error += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(error / norm);
}

}  // namespace tandem::testing
