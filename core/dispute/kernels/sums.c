/* What is the double nearest to each part of a row's sum, or of its sum of squares?

   As in dots.c; what is rounded off is exact here, and known to be while it adds up exactly. */

#include "above.h"

/* Terms are numbers, or their squares. NaN where the double is not settled. */
INLINE double one_sum(const double *x, const int64_t count, const int squared) {
  const double most = above(x, count, squared ? LEAST_SQUARED : LEAST);
  if (!(most > 0)) return most;
  const int bits = bits_for(count);
  const double term_above = squared ? most * most : most;
  const lanes begun = spread(1.5 * ldexp(1, bits + 2) * term_above);
  lanes high = begun, low = {0}, lost = {0}, least = spread(__builtin_inf()), largest = {0};
  for (int64_t k = 0; k < count; k += WIDE) {
    const lanes v = load(x + k, count - k);
    if (squared) {
      const lanes sum = multiply_add(v, v, high);
      low += multiply_add(v, v, high - sum);
      high = sum;
    } else {
      const lanes sum = high + v, size = size_of(v);
      const pair rest = two_sum(low, v + (high - sum));
      high = sum;
      low = rest.high;
      lost += size_of(rest.low);
      largest = pick(size > largest, size, largest);
      least = pick((size > 0) & (size < least), size, least);
    }
  }
  high -= begun;
  double top = 0, tail = 0, left = 0, smallest = __builtin_inf(), greatest = 0;
  for (int i = 0; i < WIDE; i++) {
    const double sum = tail + low[i], taken = sum - tail;
    left += fabs((tail - (sum - taken)) + (low[i] - taken)) + lost[i];
    tail = sum;
    top += high[i];
    smallest = least[i] < smallest ? least[i] : smallest;
    greatest = largest[i] > greatest ? largest[i] : greatest;
  }
  const int exact = !squared && left == 0 && smallest >= greatest * 0x1p-79;
  const double off = exact ? 0 : ldexp(term_above, 3 * bits - 103);
  const pair found = {spread(top), spread(tail)};
  return settled(found, spread(off), (found.high == 0) & (found.low == 0) & (spread(off) == 0),
                 (numbers){0})[0];
}

/* out [rows][parts] of x [rows][depth], whose rows lie `x_stride` apart, in parts of `terms` terms.
   NaN where the double is not settled. How many these are. */
int64_t part_sums(const double *x, int64_t x_stride, double *out, int64_t rows, int64_t depth,
                  int64_t terms, int squared) {
  int64_t open = 0;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t first = 0; first < depth; first += terms) {
      const int64_t count = depth - first < terms ? depth - first : terms;
      const double *from = x + i * x_stride + first;
      const double found = squared ? one_sum(from, count, 1) : one_sum(from, count, 0);
      *out++ = found;
      open += found != found;
    }
  return open;
}
