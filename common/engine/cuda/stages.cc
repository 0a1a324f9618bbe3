#include "common/engine/cuda/stages.h"

#include <utility>

namespace tandem::engine {

Stages::Scope::Scope(Stages& stages, const char* name, double bytes)
    : range_(name), stages_(stages) {
  if (stages_.profiling()) stages_.begin(name, bytes);
}

Stages::Scope::~Scope() {
  if (stages_.profiling()) stages_.end();
}

void Stages::begin(const char* name, double bytes) {
  if (!status_) return;
  if (used_ == marks_.size()) {
    auto first = cuda::Event::create(cuda::Event::Kind::kTiming);
    auto second = cuda::Event::create(cuda::Event::Kind::kTiming);
    if (!first || !second) {
      status_ = fail(!first ? first.error() : second.error());
      return;
    }
    marks_.push_back({nullptr, 0, std::move(*first), std::move(*second)});
  }
  marks_[used_].name = name;
  marks_[used_].bytes = bytes;
  status_ = marks_[used_].begin.record(stream_);
}

void Stages::end() {
  if (status_) status_ = marks_[used_++].end.record(stream_);
}

Status Stages::end_step() {
  if (profile_ == nullptr) return {};
  const size_t count = std::exchange(used_, 0);
  TANDEM_TRY(std::exchange(status_, {}));
  for (size_t i = 0; i < count; ++i) {
    const Mark& mark = marks_[i];
    TANDEM_ASSIGN(const float milliseconds, mark.end.milliseconds_since(mark.begin));
    profile_->add(mark.name, static_cast<double>(milliseconds) * 1e-3, mark.bytes);
  }
  profile_->end_step();
  return {};
}

}  // namespace tandem::engine
