#include "tools/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace tandem::bench {
namespace {

double nearest_rank(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

bool holds(const Observation& o, const Slo& slo) {
  if (!o.completed || o.ttft > slo.ttft_seconds) return false;
  if (o.gaps.empty()) return true;
  const double mean =
      std::accumulate(o.gaps.begin(), o.gaps.end(), 0.0) / static_cast<double>(o.gaps.size());
  return mean <= slo.itl_seconds;
}

// JSON has no NaN: an empty sample's figures are null.
boost::json::value number(double v) {
  if (!std::isfinite(v)) return nullptr;
  return v;
}

boost::json::object to_json(const Quantiles& q) {
  return {{"mean", number(q.mean)},
          {"p50", number(q.p50)},
          {"p90", number(q.p90)},
          {"p99", number(q.p99)},
          {"max", number(q.max)}};
}

double per_second(double amount, double seconds) {
  return seconds > 0 ? amount / seconds : std::numeric_limits<double>::quiet_NaN();
}

double share(uint64_t part, uint64_t whole) {
  return whole ? static_cast<double>(part) / static_cast<double>(whole)
               : std::numeric_limits<double>::quiet_NaN();
}

// `digits` after the point; "-" for what was not measured.
std::string figure(double v, int digits) {
  return std::isfinite(v) ? fmt::format("{:.{}f}", v, digits) : "-";
}

// Messages may hold numbers of single requests; a thousand of them tell no more than a few.
std::string error_lines(const std::map<std::string, size_t>& errors) {
  constexpr size_t kShown = 5;
  std::vector<std::pair<std::string, size_t>> sorted(errors.begin(), errors.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text = sorted.empty() ? "" : "errors\n";
  size_t rest = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i < kShown) {
      text += fmt::format("  {} x {}\n", sorted[i].second, sorted[i].first);
    } else {
      rest += sorted[i].second;
    }
  }
  if (rest != 0) {
    text += fmt::format("  {} x {} other messages; --json lists them all\n", rest,
                        sorted.size() - kShown);
  }
  return text;
}

std::string cached_text(const Report& r) {
  if (!r.cached_tokens) return "";
  const double part = share(*r.cached_tokens, r.prompt_tokens);
  return fmt::format(" ({} of them, {} %, from the prefix cache)", *r.cached_tokens,
                     figure(100 * part, 1));
}

}  // namespace

double percentile(std::vector<double> sample, double q) {
  std::sort(sample.begin(), sample.end());
  return nearest_rank(sample, q);
}

Quantiles quantiles(const std::vector<double>& sample) {
  std::vector<double> sorted = sample;
  std::sort(sorted.begin(), sorted.end());
  Quantiles q;
  q.mean = sorted.empty() ? std::numeric_limits<double>::quiet_NaN()
                          : std::accumulate(sorted.begin(), sorted.end(), 0.0) /
                                static_cast<double>(sorted.size());
  q.p50 = nearest_rank(sorted, 0.50);
  q.p90 = nearest_rank(sorted, 0.90);
  q.p99 = nearest_rank(sorted, 0.99);
  q.max = nearest_rank(sorted, 1.0);
  return q;
}

Report summarize(const std::vector<Observation>& observations, double seconds, const Slo& slo) {
  Report report;
  report.seconds = seconds;
  report.slo = slo;
  report.sent = observations.size();
  std::vector<double> ttft, gaps, e2e, lateness;
  for (const Observation& o : observations) {
    lateness.push_back(o.lateness);
    if (!o.completed) {
      ++report.failed;
      ++report.errors[o.error];
      continue;
    }
    ++report.completed;
    report.prompt_tokens += o.prompt_tokens;
    report.output_tokens += o.output_tokens;
    if (o.cached_tokens) {
      report.cached_tokens = report.cached_tokens.value_or(0) + *o.cached_tokens;
    }
    if (o.output_tokens > 0) ttft.push_back(o.ttft);
    gaps.insert(gaps.end(), o.gaps.begin(), o.gaps.end());
    e2e.push_back(o.e2e);
    report.within_slo += holds(o, slo) ? 1 : 0;
  }
  report.ttft = quantiles(ttft);
  report.itl = quantiles(gaps);
  report.e2e = quantiles(e2e);
  report.lateness = quantiles(lateness);
  return report;
}

std::string to_json(const Report& r) {
  boost::json::object errors;
  for (const auto& [kind, count] : r.errors) errors[kind] = count;
  const boost::json::object out = {
      {"requests",
       {{"sent", r.sent},
        {"completed", r.completed},
        {"failed", r.failed},
        {"planned", std::max(r.planned, r.sent)}}},
      {"errors", errors},
      {"seed", r.seed},
      {"duration_seconds", r.seconds},
      {"prompt_tokens", r.prompt_tokens},
      {"cached_tokens", r.cached_tokens ? boost::json::value(*r.cached_tokens) : nullptr},
      {"output_tokens", r.output_tokens},
      {"requests_per_second", number(per_second(static_cast<double>(r.completed), r.seconds))},
      {"output_tokens_per_second",
       number(per_second(static_cast<double>(r.output_tokens), r.seconds))},
      {"ttft_seconds", to_json(r.ttft)},
      {"itl_seconds", to_json(r.itl)},
      {"e2e_seconds", to_json(r.e2e)},
      {"lateness_seconds", to_json(r.lateness)},
      {"goodput",
       {{"slo_ttft_seconds", r.slo.ttft_seconds},
        {"slo_itl_seconds", r.slo.itl_seconds},
        {"share", number(share(r.within_slo, r.sent))},
        {"requests_per_second", number(per_second(static_cast<double>(r.within_slo), r.seconds))}}},
  };
  return boost::json::serialize(out);
}

std::string to_table(const Report& r) {
  std::string text = fmt::format(
      "{} requests in {:.1f} s: {} completed, {} failed\n"
      "{} prompt tokens{}, {} output tokens ({}/s)\n",
      r.sent, r.seconds, r.completed, r.failed, r.prompt_tokens, cached_text(r), r.output_tokens,
      figure(per_second(static_cast<double>(r.output_tokens), r.seconds), 1));
  if (r.planned > r.sent) {
    text += fmt::format("stopped early: these are the requests that had ended, of {}\n", r.planned);
  }
  text += fmt::format("{:<10}{:>12}{:>12}{:>12}{:>12}\n", "ms", "mean", "p50", "p90", "p99");
  const auto row = [&text](const char* name, const Quantiles& q) {
    text += fmt::format("{:<10}", name);
    for (const double seconds : {q.mean, q.p50, q.p90, q.p99})
      text += fmt::format("{:>12}", figure(seconds * 1e3, 2));
    text += '\n';
  };
  row("TTFT", r.ttft);
  row("ITL", r.itl);
  row("E2E", r.e2e);
  row("lateness", r.lateness);
  text += fmt::format(
      "goodput {} requests/s, {} % of requests within TTFT {:.0f} ms and mean ITL {:.0f} ms\n",
      figure(per_second(static_cast<double>(r.within_slo), r.seconds), 2),
      figure(100 * share(r.within_slo, r.sent), 1), r.slo.ttft_seconds * 1e3,
      r.slo.itl_seconds * 1e3);
  text += fmt::format("seed {0}; --seed {0} sends the same prompts again\n", r.seed);
  return text + error_lines(r.errors);
}

}  // namespace tandem::bench
