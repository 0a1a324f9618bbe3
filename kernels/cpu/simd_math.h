#pragma once

// After simd_avx2.h or simd_avx512.h.
namespace tandem::cpu {
namespace {

// e^x within 2 ulp; exactly 1 at 0, exactly 0 below the smallest normal result, finite above the
// largest. Reduction to |r| <= ln(2)/2 by a two-part ln(2), then the Taylor polynomial of degree 7.
inline Vec exp(Vec x) {
  const Vec low = set1(-87.33F);
  const Vec clamped = min(max(x, low), set1(88.37F));
  const Vec n = round_even(mul(clamped, set1(1.44269504F)));
  Vec r = fnma(n, set1(0.693359375F), clamped);
  r = fnma(n, set1(-2.12194440e-4F), r);
  Vec p = set1(1.0F / 5040);
  p = fma(p, r, set1(1.0F / 720));
  p = fma(p, r, set1(1.0F / 120));
  p = fma(p, r, set1(1.0F / 24));
  p = fma(p, r, set1(1.0F / 6));
  p = fma(p, r, set1(0.5F));
  p = fma(p, r, set1(1));
  p = fma(p, r, set1(1));
  return if_less(x, low, zero(), scale_exponent(p, n));
}

}  // namespace
}  // namespace tandem::cpu
