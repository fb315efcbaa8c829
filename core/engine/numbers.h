/* Sixteen numbers side by side: the arithmetic that our kernels share. */

#include <stdint.h>
#include <string.h>

#define WIDE 16

typedef float lanes __attribute__((vector_size(4 * WIDE)));
typedef int32_t numbers __attribute__((vector_size(4 * WIDE)));

static inline __attribute__((always_inline)) lanes load(const float *from, int64_t count) {
  lanes all = {0};
  if (count >= WIDE)
    memcpy(&all, from, sizeof all);
  else
    memcpy(&all, from, 4 * count);
  return all;
}

static inline __attribute__((always_inline)) float sum(lanes v) {
  float a[WIDE];
  memcpy(a, &v, sizeof a);
  for (int step = WIDE / 2; step; step /= 2)
    for (int i = 0; i < step; i++) a[i] += a[i + step];
  return a[0];
}

static inline __attribute__((always_inline)) lanes spread(float one) {
  lanes all;
  for (int i = 0; i < WIDE; i++) all[i] = one;
  return all;
}

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
  const numbers power = (__builtin_convertvector(n, numbers) + 127) << 23;
  lanes scaled;
  memcpy(&scaled, &power, sizeof scaled);
  y = y * scaled;
  numbers bits;
  memcpy(&bits, &y, sizeof bits);
  bits &= counts;
  memcpy(&y, &bits, sizeof y);
  return y;
}

static inline __attribute__((always_inline)) void store(float *to, lanes all, int64_t count) {
  if (count >= WIDE)
    memcpy(to, &all, sizeof all);
  else
    memcpy(to, &all, 4 * count);
}
