/* Numbers of twice a double's digits side by side: core/dispute/play/doubles.py in C.

   A number is a pair (high, low) whose sum it is. Compiled without contraction, so that each line
   rounds as it is written. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if !defined(__FMA__) && !defined(__ARM_FEATURE_FMA)
#error "this processor has no instruction that multiplies and adds with one rounding"
#endif
#if defined(__FAST_MATH__)
#error "sums must not be reordered"
#endif

#if defined(__AVX512F__)
#include <immintrin.h>
#define WIDE 8
#elif defined(__FMA__)
#include <immintrin.h>
#define WIDE 4
#else
#include <arm_neon.h>
#define WIDE 2
#endif

typedef double lanes __attribute__((vector_size(8 * WIDE)));
typedef int64_t numbers __attribute__((vector_size(8 * WIDE)));
typedef struct {
  lanes high, low;
} pair;

#define INLINE static inline __attribute__((always_inline))

INLINE lanes spread(const double one) { return one - (lanes){0}; }

INLINE numbers bits_of(const lanes v) { return (numbers)v; }

INLINE lanes load(const double *from, const int64_t count) {
  lanes all = {0};
  if (count >= WIDE)
    memcpy(&all, from, sizeof all);
  else
    memcpy(&all, from, sizeof(double) * (size_t)count);
  return all;
}

INLINE void store(double *to, const lanes all, const int64_t count) {
  if (count >= WIDE)
    memcpy(to, &all, sizeof all);
  else
    memcpy(to, &all, sizeof(double) * (size_t)count);
}

/* Of each lane one where all bits of `which` are set, other where none is. */
INLINE lanes pick(const numbers which, const lanes one, const lanes other) {
  return (lanes)((bits_of(one) & which) | (bits_of(other) & ~which));
}

INLINE lanes size_of(const lanes v) { return (lanes)(bits_of(v) & INT64_MAX); }

/* a · b + c, rounded once. */
INLINE lanes multiply_add(const lanes a, const lanes b, const lanes c) {
#if defined(__AVX512F__)
  return (lanes)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
  return (lanes)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return (lanes)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#endif
}

INLINE pair single(const lanes a) { return (pair){a, (lanes){0}}; }

INLINE pair negative(const pair a) { return (pair){-a.high, -a.low}; }

/* a + b exactly. */
INLINE pair two_sum(const lanes a, const lanes b) {
  const lanes total = a + b, part = total - a;
  return (pair){total, (a - (total - part)) + (b - part)};
}

/* a · b exactly, unless it or what it is rounded by leaves the range of normal numbers. */
INLINE pair two_product(const lanes a, const lanes b) {
  const lanes product = a * b;
  return (pair){product, multiply_add(a, b, -product)};
}

INLINE pair add_pairs(const pair a, const pair b) {
  const pair top = two_sum(a.high, b.high), tail = two_sum(a.low, b.low);
  const pair found = two_sum(top.high, top.low + tail.high);
  return two_sum(found.high, found.low + tail.low);
}

INLINE pair times(const pair a, const pair b) {
  const pair found = two_product(a.high, b.high);
  return two_sum(found.high, found.low + (a.high * b.low + a.low * b.high));
}

/* a / b by three steps of long division. */
INLINE pair divided(const pair a, const pair b) {
  const lanes first = a.high / b.high;
  pair rest = add_pairs(a, negative(times(single(first), b)));
  const lanes second = rest.high / b.high;
  rest = add_pairs(rest, negative(times(single(second), b)));
  const pair found = two_sum(first, second);
  return two_sum(found.high, found.low + rest.high / b.high);
}

/* Relative error of what is made of the functions above, with room; outside SMALL and LARGE they
   may be no longer exact. */
#define PAIR_ERROR 0x1p-96
#define SMALL 0x1p-900
#define LARGE 0x1p900

/* The double nearest to `found`, which may be `off`; zero where `zero` is; NaN where that does not
   settle it, `doubt` is, or it is no larger than `small`. */
INLINE lanes settled_above(const double small, const pair found, const lanes off,
                           const numbers zero, const numbers doubt) {
  const pair at = two_sum(found.high, found.low);
  const lanes size = size_of(at.high), gap = (size - (lanes)(bits_of(size) - 1)) / 2;
  numbers sure = (size_of(at.low) + off < gap) | ((off == 0) & (size > 0));
  sure &= (size > small) & (size < LARGE) & ~doubt;
  const lanes value = pick(sure, at.high + 0.0, spread(__builtin_nan("")));
  return (lanes)(bits_of(value) & ~zero);
}

INLINE lanes settled(const pair found, const lanes off, const numbers zero, const numbers doubt) {
  return settled_above(SMALL, found, off, zero, doubt);
}

INLINE int none_of(const numbers which) {
  int64_t some = 0;
  for (int i = 0; i < WIDE; i++) some |= which[i];
  return some == 0;
}

/* How many of `count` lanes are NaN. */
INLINE int64_t open_of(const lanes v, const int64_t count) {
  const numbers odd = v != v;
  int64_t found = 0;
  if (none_of(odd)) return 0;
  for (int i = 0; i < WIDE; i++) found -= i < count ? odd[i] : 0;
  return found;
}
