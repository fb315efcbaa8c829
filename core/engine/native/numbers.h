/* Sixteen numbers side by side, or eight of float64: the arithmetic that our kernels share. */

#include <stdint.h>
#include <string.h>

#include "real.h"

#define WIDE (64 / (int)sizeof(REAL))

typedef REAL lanes __attribute__((vector_size(64)));
typedef WHOLE numbers __attribute__((vector_size(64)));

static inline __attribute__((always_inline)) lanes load(const REAL *from, int64_t count) {
  lanes all = {0};
  if (count >= WIDE)
    memcpy(&all, from, sizeof all);
  else
    memcpy(&all, from, sizeof(REAL) * count);
  return all;
}

static inline __attribute__((always_inline)) REAL sum(lanes v) {
  REAL a[WIDE];
  memcpy(a, &v, sizeof a);
  for (int step = WIDE / 2; step; step /= 2)
    for (int i = 0; i < step; i++) a[i] += a[i + step];
  return a[0];
}

static inline __attribute__((always_inline)) lanes spread(REAL one) {
  lanes all;
  for (int i = 0; i < WIDE; i++) all[i] = one;
  return all;
}

/* Of each lane one where it counts (all bits set), other where it does not. */
static inline __attribute__((always_inline)) lanes pick(numbers counts, lanes one, lanes other) {
  numbers a, b;
  memcpy(&a, &one, sizeof a);
  memcpy(&b, &other, sizeof b);
  a = (a & counts) | (b & ~counts);
  memcpy(&one, &a, sizeof one);
  return one;
}

#if REAL_BITS == 64
#define EXPONENT_BIAS 1023
#define FRACTION_BITS 52
#else
#define EXPONENT_BIAS 127
#define FRACTION_BITS 23
#endif

/* y · 2^n where it counts, 0 where it does not. */
static inline __attribute__((always_inline)) lanes scaled_where(numbers counts, lanes y, lanes n) {
  const numbers power = (__builtin_convertvector(n, numbers) + EXPONENT_BIAS) << FRACTION_BITS;
  lanes scaled;
  memcpy(&scaled, &power, sizeof scaled);
  return pick(counts, y * scaled, spread(0));
}

#if REAL_BITS == 64
/* e^x for x ≤ 0, to about one unit in the last place; 0 below −708. The terms of its series, 1/13!
   … 1/0!. */
static inline __attribute__((always_inline)) lanes exponential(lanes x) {
  static const double terms[] = {
      1.6059043836821613e-10, 2.08767569878681e-09,  2.505210838544172e-08, 2.755731922398589e-07,
      2.7557319223985893e-06,
      2.48015873015873e-05,   1.984126984126984e-04, 1.388888888888889e-03, 8.333333333333333e-03,
      4.1666666666666664e-02,
      1.6666666666666666e-01, 0.5,                   1.0,                   1.0};
  const numbers counts = x > spread(-708.0);
  const lanes shift = spread(6755399441055744.0);
  const lanes n = (x * 1.4426950408889634 + shift) - shift;
  lanes r = x - n * 6.93147180369123816490e-01;
  r = r - n * 1.90821492927058770002e-10;
  lanes y = spread(terms[0]);
  for (int i = 1; i < 14; i++) y = y * r + terms[i];
  return scaled_where(counts, y, n);
}
#else
/* e^x for x ≤ 0, to about one unit in the last place; 0 below −87. */
static inline __attribute__((always_inline)) lanes exponential(lanes x) {
  const numbers counts = x > spread(-87.0f);
  const lanes shift = spread(12582912.0f);
  const lanes n = (x * 1.44269504f + shift) - shift;
  lanes r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  lanes y = spread(1.9875691500e-4f);
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  return scaled_where(counts, y, n);
}
#endif

static inline __attribute__((always_inline)) void store(REAL *to, lanes all, int64_t count) {
  if (count >= WIDE)
    memcpy(to, &all, sizeof all);
  else
    memcpy(to, &all, sizeof(REAL) * count);
}

/* In place, `count` scores into weights that sum to one. What is left to the next multiple of WIDE
   is scratch. */
static inline void soft_max(REAL *scores, int64_t count) {
  REAL most = scores[0];
  int broken = 0;
  int64_t i = 0;
  if (count >= WIDE) {
    lanes largest = load(scores, WIDE);
    numbers odd = {0};
    for (; i + WIDE <= count; i += WIDE) {
      const lanes x = load(scores + i, WIDE);
      largest = pick(x > largest, x, largest);
      odd |= x != x;
    }
    for (int l = 0; l < WIDE; l++) {
      if (largest[l] > most) most = largest[l];
      broken |= odd[l] != 0;
    }
  }
  for (; i < count; i++) {
    if (scores[i] > most) most = scores[i];
    broken |= scores[i] != scores[i];
  }
  for (i = count; i % WIDE; i++) scores[i] = (REAL)-1e30;
  lanes total = {0};
  for (i = 0; i < count; i += WIDE) {
    lanes x;
    memcpy(&x, scores + i, sizeof x);
    x = exponential(x - spread(most));
    memcpy(scores + i, &x, sizeof x);
    total += x;
  }
  const REAL share = broken ? __builtin_nanf("") : (REAL)1 / sum(total);
  for (i = 0; i < count; i++) scores[i] *= share;
}
