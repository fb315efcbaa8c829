/* Which power of two is above the terms of a sum? */

#include "pairs.h"

/* Of the largest number of a row, of one that is squared, and of a product: between these nothing
   that counts is lost below the smallest double, nor above the largest. Weights of attention can be
   that small. */
#define LEAST (-950)
#define LEAST_SQUARED (-400)
#define LEAST_PRODUCT 0x1p-960
#define MOST 400

/* A power of two above all of `count` numbers; 0 where all are 0, NaN where none is safe. */
static inline double above(const double *x, const int64_t count, const int least) {
  double most = 0;
  int odd = 0;
  for (int64_t i = 0; i < count; i++) {
    const double size = fabs(x[i]);
    most = size > most ? size : most;
    odd |= size != size;
  }
  int power;
  frexp(most, &power);
  if (odd || most > DBL_MAX || (most > 0 && (power < least || power > MOST)))
    return __builtin_nan("");
  return most == 0 ? 0 : ldexp(1, power);
}

static inline int bits_for(const int64_t count) {
  int bits = 0;
  while (((int64_t)1 << bits) < count) bits++;
  return bits;
}
