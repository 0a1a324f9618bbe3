#pragma once

namespace tandem::node {

// Exponentially smoothed mean of recent samples: what a heartbeat calls "recent".
class Smoothed {
 public:
  explicit Smoothed(double weight = 0.1) : weight_(weight) {}
  void add(double sample) {
    value_ = empty_ ? sample : value_ + weight_ * (sample - value_);
    empty_ = false;
  }
  [[nodiscard]] double value() const { return value_; }  // 0 before the first sample

 private:
  double weight_;
  double value_ = 0;
  bool empty_ = true;
};

// Amount per second over the recent past: old samples fade, and a large sample weighs more than a
// small one, so that a few short steps do not hide what long ones reach.
class Throughput {
 public:
  explicit Throughput(double decay = 0.9) : decay_(decay) {}
  void add(double amount, double seconds) {
    if (seconds <= 0) return;
    amount_ = amount_ * decay_ + amount;
    seconds_ = seconds_ * decay_ + seconds;
  }
  [[nodiscard]] double per_second() const { return seconds_ > 0 ? amount_ / seconds_ : 0; }

 private:
  double decay_;
  double amount_ = 0, seconds_ = 0;
};

// Least-squares line through recent (x, y), old samples fading by `decay` each.
class LineFit {
 public:
  explicit LineFit(double decay = 0.98) : decay_(decay) {}
  void add(double x, double y) {
    n_ = n_ * decay_ + 1;
    x_ = x_ * decay_ + x;
    y_ = y_ * decay_ + y;
    xx_ = xx_ * decay_ + x * x;
    xy_ = xy_ * decay_ + x * y;
  }
  // 0 until x has varied: a slope cannot be told from one batch size.
  [[nodiscard]] double slope() const {
    const double spread = n_ * xx_ - x_ * x_;
    if (spread <= 1e-6 * n_ * xx_) return 0;
    return (n_ * xy_ - x_ * y_) / spread;
  }

 private:
  double decay_;
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace tandem::node
