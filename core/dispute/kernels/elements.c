/* What is the double nearest to what an operator makes of each number by itself?

   The operators of core/dispute/play/nearest.py that pairs settle. All arrays have `count` numbers;
   results are NaN where the double is not settled, and how many these are is returned. */

#include "pairs.h"

/* e^x as exp_pair in doubles.py has it, which also makes these numbers. */
typedef struct {
  double ln2[5], factorials[14][2], table[49][2];
} series;

#define TERMS 14
#define STEPS 64
#define MIDDLE 24 /* of the table */
/* Of an exponential: up to here it is a normal number, and from NOTHING on it, and a number as
   large as what it is of times it, are nearest to 0. */
#define FAR 700.0
#define NOTHING 760.0
/* Terms of the series that are pairs, and the relative error with room: from there on a double is
   enough, rounded off below 2^-51 of r^4/4! < 2^-32, or of r^7/7! < 2^-61. */
#define FEW 4
#define FEW_ERROR 0x1p-80
#define MANY 7

INLINE lanes whole(const lanes v) { return (v + 0x1.8p52) - 0x1.8p52; }

INLINE pair constant(const double *both) { return (pair){spread(both[0]), spread(both[1])}; }

/* e^x for |x| ≤ FAR, as a pair near one times a power of two. */
INLINE pair near_one(const series *s, const pair x, const int pairs, lanes *power) {
  const lanes turns = whole(x.high / s->ln2[0]);
  pair rest = x;
  for (int i = 1; i < 5; i++) rest = add_pairs(rest, two_product(-turns, spread(s->ln2[i])));
  const lanes steps = whole(rest.high * STEPS);
  rest = add_pairs(rest, single(-steps / STEPS));
  lanes tail = spread(s->factorials[TERMS - 1][0]);
  for (int n = TERMS - 2; n >= pairs; n--)
    tail = multiply_add(tail, rest.high, spread(s->factorials[n][0]));
  pair found = single(tail);
  for (int n = pairs - 1; n >= 0; n--)
    found = add_pairs(times(found, rest), constant(s->factorials[n]));
  const numbers at = __builtin_convertvector(steps, numbers) + MIDDLE;
  pair step = single((lanes){0});
  for (int i = 0; i < WIDE; i++) {
    step.high[i] = s->table[at[i]][0];
    step.low[i] = s->table[at[i]][1];
  }
  *power = (lanes)((__builtin_convertvector(turns, numbers) + 1023) << 52);
  return times(found, step);
}

INLINE pair exponential(const series *s, const pair x, const int pairs) {
  lanes power;
  const pair found = near_one(s, x, pairs, &power);
  return (pair){found.high * power, found.low * power};
}

/* Where a number is beyond FAR or none; there the pair becomes 0. */
INLINE numbers is_far(pair *x) {
  const numbers far = ~(size_of(x->high) <= FAR);
  x->high = pick(far, (lanes){0}, x->high);
  x->low = pick(far, (lanes){0}, x->low);
  return far;
}

INLINE int64_t put(double *out, const lanes v, const int64_t count) {
  store(out, v, count);
  return open_of(v, count);
}

/* e^(x − most of its row); 0 where x is −∞. Rows lie `…_stride` apart. */
int64_t exponentials(const series *s, const double *x, int64_t x_stride, const double *most,
                     double *out, int64_t out_stride, int64_t rows, int64_t columns) {
  int64_t open = 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < columns; i += WIDE) {
      const int64_t left = columns - i;
      const lanes m = spread(most[r]), v = load(x + r * x_stride + i, left);
      const numbers hidden = v == -__builtin_inf();
      if (none_of(~hidden)) {
        store(out + r * out_stride + i, (lanes){0}, left);
        continue;
      }
      pair by = two_sum(pick(hidden, m, v), -m);
      const numbers zero = hidden | (by.high < -NOTHING), far = is_far(&by);
      const numbers one = ~far & (by.high == 0) & (by.low == 0);
      lanes power;
      const pair found = near_one(s, by, FEW, &power);
      const lanes near = settled(found, size_of(found.high) * FEW_ERROR, zero, far) * power;
      open += put(out + r * out_stride + i, pick(one & ~zero, spread(1), near), left);
    }
  return open;
}

/* g / (1 + e^-x): x is g, or 2 √(2/π) (g + 0.044715 g³) where `gelu` holds these two numbers. */
int64_t gates(const series *s, const double *gelu, const double *g, double *out, int64_t count) {
  int64_t open = 0;
  for (int64_t i = 0; i < count; i += WIDE) {
    const lanes v = load(g + i, count - i);
    pair x = single(v);
    if (gelu) {
      const lanes within = pick(v > 1e3, spread(1e3), pick(v < -1e3, spread(-1e3), v));
      const pair one = single(within);
      const pair cubed = times(times(times(one, one), one), constant(gelu + 2));
      x = times(add_pairs(one, cubed), constant(gelu));
    }
    const numbers positive = x.high >= 0, nothing = x.high < -NOTHING, all = x.high > FAR;
    const numbers far = is_far(&x);
    const pair e = exponential(
        s, (pair){pick(positive, -x.high, x.high), pick(positive, -x.low, x.low)}, FEW);
    pair above = times(single(v), e);
    above.high = pick(positive, v, above.high);
    above.low = pick(positive, (lanes){0}, above.low);
    const pair found = divided(above, add_pairs(single(spread(1)), e));
    const numbers zero = (v == 0) | nothing;
    const lanes near = settled(found, size_of(found.high) * FEW_ERROR, zero, far);
    open += put(out + i, pick(all & (size_of(v) < LARGE), v, near), count - i);
  }
  return open;
}

/* cap · tanh(x / cap); −∞ of itself. With z = x / cap below 2^-28 it is x (1 − z²/3 + …), off by
   less than 2^-57 of it; the referee's e^-2z, of an argument so near 0, is off by less than 2^-117,
   so what it makes of a z above 2^-61 is off by less than 2^-56 more, and below it takes x. */
int64_t soft_caps(const series *s, const double *x, double cap, double *out, int64_t count) {
  int64_t open = 0;
  for (int64_t i = 0; i < count; i += WIDE) {
    const lanes v = load(x + i, count - i);
    const numbers infinite = v == -__builtin_inf();
    const pair limit = single(spread(cap)), one = single(spread(1));
    const lanes size = pick(infinite, (lanes){0}, size_of(v));
    pair by = negative(divided(single(2 * size), limit));
    const numbers all = (by.high < -FAR) & (size < LARGE), far = is_far(&by);
    const pair e = exponential(s, by, MANY);
    pair found = divided(times(add_pairs(one, negative(e)), limit), add_pairs(one, e));
    const lanes off = size_of(found.high) * PAIR_ERROR + cap * PAIR_ERROR;
    found.high = pick(all, limit.high, found.high);
    found.low = pick(all, limit.low, found.low);
    const numbers below = v < 0;
    found.high = pick(below, -found.high, found.high);
    found.low = pick(below, -found.low, found.low);
    const lanes near = settled(found, off, v == 0, far & ~all);
    const numbers is_x = size < cap * 0x1p-28;
    open += put(out + i, pick(infinite | is_x, v + 0.0, near), count - i);
  }
  return open;
}

/* Where a product is one number, and is no rounded one: ties are settled there. */
INLINE numbers is_exact(const pair product, const numbers zero) {
  return (product.low == 0) & ((size_of(product.high) > SMALL) | zero);
}

INLINE lanes unless(const numbers exact, const lanes off) {
  return (lanes)(bits_of(off) & ~exact);
}

/* x · r · (gain + plus). */
int64_t norms(const double *x, const double *r, const double *gain, double plus, double *out,
              int64_t count) {
  int64_t open = 0;
  for (int64_t i = 0; i < count; i += WIDE) {
    const int64_t left = count - i;
    const lanes v = load(x + i, left), g = load(gain + i, left);
    const pair product = two_product(v, load(r + i, left)), gained = two_sum(spread(plus), g);
    const pair found = times(product, gained);
    const numbers zero = (v == 0) | (plus + g == 0);
    /* one number times another, or times one */
    const numbers exact = is_exact(product, zero) & (gained.low == 0);
    const numbers alike = (gained.high == 1) & (gained.low == 0) & (size_of(product.high) > SMALL);
    const lanes off = size_of(found.high) * PAIR_ERROR;
    open += put(out + i, settled(found, unless(exact | alike, off), zero, (numbers){0}), left);
  }
  return open;
}

/* a · c − b · s, or their sum. */
int64_t rotations(const double *a, const double *b, const double *c, const double *s, int minus,
                  double *out, int64_t count) {
  int64_t open = 0;
  for (int64_t i = 0; i < count; i += WIDE) {
    const int64_t left = count - i;
    const lanes x = load(a + i, left), y = load(b + i, left);
    const lanes cosine = load(c + i, left), sine = load(s + i, left);
    const pair first = two_product(x, cosine);
    pair second = two_product(y, sine);
    if (minus) second = negative(second);
    const lanes off = (size_of(first.high) + size_of(second.high)) * 0x1p-100;
    const numbers zero = (first.high == 0) & (second.high == 0);
    const numbers exact = is_exact(first, (x == 0) | (cosine == 0)) &
                          is_exact(second, (y == 0) | (sine == 0));
    const pair found = add_pairs(first, second);
    open += put(out + i, settled(found, unless(exact, off), zero, (numbers){0}), left);
  }
  return open;
}

/* (a − b) / σ. */
int64_t whitened(const double *a, const double *b, const double *sigma, double *out,
                 int64_t count) {
  int64_t open = 0;
  for (int64_t i = 0; i < count; i += WIDE) {
    const int64_t left = count - i;
    const pair by = two_sum(load(a + i, left), -load(b + i, left));
    const pair found = divided(by, single(load(sigma + i, left)));
    const numbers zero = (by.high == 0) & (by.low == 0);
    const lanes off = size_of(found.high) * PAIR_ERROR;
    open += put(out + i, settled(found, off, zero, (numbers){0}), left);
  }
  return open;
}
