/* What is the double nearest to each dot product of two sets of rows?

   A dot product is one of parts of `terms` terms: each part is rounded, and so is their sum. A
   product is added to a sum whose last bit always weighs the same, because it began far above all
   products together; so what that rounded off is known, and is added up beside it. Rump, Ogita and
   Oishi, "Accurate floating-point summation" (2008), here with products rounded once. */

#include <stdlib.h>

#include "above.h"

/* Sums and what they round off fit sixteen registers. */
#define ROWS 3
#define VECTORS 2
/* Of a sum: no product is rounded twice there, as in a pair. */
#define SMALL_SUM 0x1p-1000
#define COLUMNS (VECTORS * WIDE) /* of a panel: [terms][COLUMNS] */
#define LEVELS 3

/* A running sum over vectors, as `Running` in doubles.py. */
typedef struct {
  lanes sums[LEVELS], largest, least;
  numbers lost, seen; /* seen: a term that is not zero */
  int64_t count;
} running;

INLINE running none_yet(void) {
  return (running){.least = spread(__builtin_inf())};
}

INLINE void add_term(running *r, lanes value) {
  const lanes size = size_of(value);
  const numbers some = size != 0;
  r->largest = pick(size > r->largest, size, r->largest);
  r->least = pick(some & (size < r->least), size, r->least);
  r->seen |= some;
  r->count++;
  for (int level = 0; level < LEVELS; level++) {
    const pair sum = two_sum(r->sums[level], value);
    r->sums[level] = sum.high;
    value = sum.low;
  }
  r->lost |= value != 0;
}

/* The sum, what it may be off, and whether it is exact. */
INLINE pair sum_of(const running *r, lanes *off, numbers *exact) {
  pair top = two_sum(r->sums[0], r->sums[1]);
  const pair middle = two_sum(top.low, r->sums[2]);
  top = two_sum(top.high, middle.high);
  const pair low = two_sum(top.low, middle.low);
  const double count = (double)r->count;
  *off = r->largest * (count * count * count * 0x1p-130) + size_of(low.high) * 0x1p-52;
  *exact = ~r->lost & (low.low == 0) & (r->least >= r->largest * 0x1p-79);
  return (pair){top.high, low.high};
}

INLINE lanes settled_sum(const running *r) {
  lanes off;
  numbers exact;
  const pair found = sum_of(r, &off, &exact);
  return settled(found, (lanes)(bits_of(off) & ~exact), ~r->seen, (numbers){0});
}

/* factor · found, which may be off; 0 where `zero` is, NaN where a double is not settled. */
INLINE lanes scaled(pair found, lanes off, const numbers zero, const double factor) {
  if (factor != 1) {
    found = times(found, single(spread(factor)));
    off = (off + size_of(found.high) * PAIR_ERROR) * (fabs(factor) > 1 ? fabs(factor) : 1);
  }
  return settled(found, off, zero, (numbers){0});
}

/* As a vector of `part`, each product and what it is rounded off added to a running sum: a hundred
   times as long and off by less, for the few that lie too near the middle of two doubles. Never
   taken for exact, because a product may be lost below the smallest double. */
static __attribute__((noinline)) lanes part_with_care(const double *x, const double *panel,
    const int64_t count, const double factor) {
  running sum = none_yet();
  numbers small = {0}; /* a product that may be no longer exact */
  for (int64_t k = 0; k < count; k++) {
    const lanes one = spread(x[k]), w = load(panel + k * COLUMNS, WIDE);
    const pair product = two_product(one, w);
    small |= (one != 0) & (w != 0) & ~(size_of(product.high) > SMALL);
    add_term(&sum, product.high);
    add_term(&sum, product.low);
  }
  lanes off;
  numbers exact;
  const pair found = sum_of(&sum, &off, &exact);
  return scaled(found, (lanes)(bits_of(off) & ~(exact & ~small)), (numbers){0}, factor);
}

/* One part of ROWS rows and a panel: values as doubles nearest to factor · the dot product. With
   2^b ≥ count and products below 2^p, sums stay below 2^(p+b) and begin at 1.5 · 2^(p+b+2). So a
   product is rounded off at 2^(p+b-51), that again at 2^(p+b-104), and their sum, below
   2^(p+2b-51), at 2^(p+2b-105) a term: less than 2^(p+3b-103) in all. What the referee drops below
   its grid is less than a thousandth of that, or 2^-1067 in all, less than an eighth. */
INLINE void part(const double *const x[ROWS], const double *panel, const int64_t count,
                 const double x_above[ROWS], const double *w_above, const double factor,
                 lanes out[ROWS][VECTORS]) {
  const int bits = bits_for(count);
  lanes most[ROWS][VECTORS], begun[ROWS][VECTORS], high[ROWS][VECTORS], low[ROWS][VECTORS];
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++) {
      const lanes one = spread(x_above[r]), w = load(w_above + v * WIDE, WIDE);
      const numbers lost = (one != 0) & (w != 0) & (one * w < LEAST_PRODUCT);
      most[r][v] = pick(lost, spread(__builtin_nan("")), one * w);
      begun[r][v] = 1.5 * ldexp(1, bits + 2) * most[r][v];
      high[r][v] = begun[r][v];
      low[r][v] = (lanes){0};
    }
  for (int64_t k = 0; k < count; k++) {
    lanes w[VECTORS];
    for (int v = 0; v < VECTORS; v++) w[v] = load(panel + k * COLUMNS + v * WIDE, WIDE);
    for (int r = 0; r < ROWS; r++) {
      const lanes one = spread(x[r][k]);
      for (int v = 0; v < VECTORS; v++) {
        const lanes sum = multiply_add(one, w[v], high[r][v]);
        low[r][v] += multiply_add(one, w[v], high[r][v] - sum);
        high[r][v] = sum;
      }
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++) {
      const pair found = two_sum(high[r][v] - begun[r][v], low[r][v]);
      const lanes off = ldexp(1, 3 * bits - 103) * most[r][v];
      const numbers nothing = (found.high == 0) & (off == 0), is_safe = off == off;
      out[r][v] = factor == 1 ? settled_above(SMALL_SUM, found, off, nothing, (numbers){0})
                              : scaled(found, off, nothing, factor);
      const numbers open = (out[r][v] != out[r][v]) & is_safe;
      if (!none_of(open))
        out[r][v] = pick(open, part_with_care(x[r], panel + v * WIDE, count, factor), out[r][v]);
    }
}

/* out [rows][columns] = factor · x [rows][depth] · w [columns][depth]ᵀ + bias, in parts of `terms`
   terms, of rows that lie `…_stride` apart; `bias` may be null, and `factor` is 1 where there are
   several parts. NaN where the double is not settled. How many these are; −1 without memory. */
int64_t dot_products(const double *x, int64_t x_stride, const double *w, int64_t w_stride,
                     const double *bias, double *out, int64_t out_stride, int64_t rows,
                     int64_t columns, int64_t depth, int64_t terms, double factor) {
  const int64_t parts = (depth + terms - 1) / terms;
  double *panel = aligned_alloc(64, sizeof(double) * (size_t)(depth * COLUMNS));
  double *x_above = malloc(sizeof(double) * (size_t)(rows * parts));
  double *w_above = malloc(sizeof(double) * (size_t)(parts * COLUMNS));
  int64_t open = 0;
  if (!panel || !x_above || !w_above) open = -1;
  for (int64_t i = 0; i < rows && open >= 0; i++)
    for (int64_t p = 0; p < parts; p++) {
      const int64_t first = p * terms, left = depth - first;
      x_above[i * parts + p] =
          above(x + i * x_stride + first, left < terms ? left : terms, LEAST);
    }
  for (int64_t column = 0; column < columns && open >= 0; column += COLUMNS) {
    const int64_t wide = columns - column < COLUMNS ? columns - column : COLUMNS;
    double added[COLUMNS] = {0};
    for (int64_t j = 0; j < COLUMNS; j++) {
      const double *from = w + (column + j) * w_stride;
      for (int64_t p = 0; p < parts; p++) {
        const int64_t first = p * terms, left = depth - first;
        w_above[p * COLUMNS + j] =
            j < wide ? above(from + first, left < terms ? left : terms, LEAST) : 0;
      }
      for (int64_t k = 0; k < depth; k++) panel[k * COLUMNS + j] = j < wide ? from[k] : 0;
      if (bias && j < wide) added[j] = bias[column + j];
    }
    for (int64_t row = 0; row < rows; row += ROWS) {
      running sums[ROWS][VECTORS];
      lanes value[ROWS][VECTORS];
      for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = none_yet();
      for (int64_t p = 0; p < parts; p++) {
        const int64_t first = p * terms, left = depth - first;
        const double *from[ROWS];
        double most[ROWS];
        int empty = parts > 1;
        for (int r = 0; r < ROWS; r++) {
          const int64_t i = row + r < rows ? row + r : rows - 1;
          from[r] = x + i * x_stride + first;
          most[r] = x_above[i * parts + p];
          empty &= most[r] == 0;
        }
        if (empty) continue; /* what a causal row does not see adds nothing */
        part(from, panel + first * COLUMNS, left < terms ? left : terms, most,
             w_above + p * COLUMNS, factor, value);
        if (parts > 1 || bias)
          for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) add_term(&sums[r][v], value[r][v]);
      }
      for (int r = 0; r < ROWS && row + r < rows; r++)
        for (int v = 0; v < VECTORS && v * WIDE < wide; v++) {
          const int64_t count = wide - v * WIDE;
          if (bias) add_term(&sums[r][v], load(added + v * WIDE, WIDE));
          if (parts > 1 || bias) value[r][v] = settled_sum(&sums[r][v]);
          store(out + (row + r) * out_stride + column + v * WIDE, value[r][v], count);
          open += open_of(value[r][v], count);
        }
    }
  }
  free(panel);
  free(x_above);
  free(w_above);
  return open;
}
