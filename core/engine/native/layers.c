/* A run of plain decoder layers: norm, products, rotation, attention, norm, gated products, and
   nothing in between.

   A plain layer is x += out(attend(rotate(qkv(norm(x))))), x += down(act(gate(norm(x))) ·
   up(norm(x))), act SiLU or GELU with its tanh; what is added may be normed first. Sums of sixteen
   run side by side in a fixed order, so that a row's bits depend neither on other rows, nor on
   threads, nor on vectors' width. What could be rounded otherwise where it is used twice is not
   inlined. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "numbers.h"

/* products.c and paged_rows.c */
void multiply(const REAL *x, int64_t x_stride, const REAL *weight, const REAL *bias, REAL *out,
              int64_t rows, int64_t depth, int64_t columns, int threads);
int attend(const REAL *query, int64_t row_stride, int64_t head_stride, const REAL *keys,
           const REAL *values, const int64_t *pages, int64_t most_pages, const int32_t *begin,
           const int32_t *end, REAL *out, int64_t rows, int64_t heads, int64_t group,
           int64_t key_width, int64_t value_width, REAL scale, int threads);
void put(const REAL *from, int64_t row_stride, int64_t head_stride, const int64_t *slots,
         REAL *pool, int64_t rows, int64_t heads, int64_t width);

/* Weights as products.c wants them; biases, the norms of queries and keys and those of what is
   added may be null. */
typedef struct {
  const REAL *norm, *qkv, *qkv_bias, *query_norm, *key_norm, *out, *out_bias, *added_norm;
  const REAL *inner_norm, *gate_up, *gate_up_bias, *down, *down_bias, *inner_added_norm;
  int64_t hidden, heads, kv_heads, head_width, inner, is_gelu;
  REAL epsilon, inner_epsilon, head_epsilon, scale;
} Layer;

/* What a step writes and sees at one layer, as `put` and `attend` take it. */
typedef struct {
  REAL *keys, *values;
  const int64_t *slots, *pages;
  const int32_t *begin, *end;
  int64_t most_pages;
} Seen;

/* out = x / sqrt(mean of squares + epsilon) · weight; out may be x. */
static void __attribute__((noinline)) norm_row(const REAL *x, const REAL *weight, REAL *out,
    int64_t width, REAL epsilon) {
  lanes squares = {0};
  for (int64_t i = 0; i < width; i += WIDE) {
    const lanes v = load(x + i, width - i);
    squares += v * v;
  }
  const REAL share = (REAL)1 / ROOT(sum(squares) / (REAL)width + epsilon);
  for (int64_t i = 0; i < width; i += WIDE)
    store(out + i, load(weight + i, width - i) * (load(x + i, width - i) * spread(share)),
        width - i);
}

/* Rotates halves in place: the first by −sin, the second by sin. */
static void __attribute__((noinline)) rotate(REAL *x, const REAL *cosine, const REAL *sine,
    int64_t width) {
  const int64_t half = width / 2;
  for (int64_t i = 0; i < half; i += WIDE) {
    const int64_t left = half - i;
    const lanes a = load(x + i, left), b = load(x + half + i, left);
    const lanes first = a * load(cosine + i, left) - b * load(sine + i, left);
    const lanes second = b * load(cosine + half + i, left) + a * load(sine + half + i, left);
    store(x + i, first, left);
    store(x + half + i, second, left);
  }
}

/* out = act(gate) · up of a row whose gates come first; act(g) = g / (1 + e^−t), t = g or, as ½(1 +
   tanh u) = 1 / (1 + e^−2u), 2u. */
static void __attribute__((noinline)) gate_row(const REAL *both, REAL *out, int64_t width,
    int is_gelu) {
  for (int64_t i = 0; i < width; i += WIDE) {
    const int64_t left = width - i;
    const lanes gate = load(both + i, left);
    lanes turned = gate;
    if (is_gelu) /* √(8/π) and 0.044715 of it */
      turned = gate * (spread((REAL)1.5957691216057308)
          + spread((REAL)0.07135481627260025) * (gate * gate));
    numbers sign = {0};
    memcpy(&sign, &turned, sizeof turned);
    numbers above = sign | LEAST_WHOLE;
    lanes falling; /* −|t| */
    memcpy(&falling, &above, sizeof falling);
    const lanes power = exponential(falling);
    const lanes one = spread(1);
    const lanes top = pick(turned < spread(0), power, one);
    store(out + i, gate * (top / (one + power)) * load(both + width + i, left), left);
  }
}

/* x += more, rows that are normed first where there is a weight for it. */
static void add_normed(REAL *x, REAL *more, const REAL *weight, int64_t rows, int64_t width,
    REAL epsilon) {
  if (weight)
    for (int64_t r = 0; r < rows; r++)
      norm_row(more + r * width, weight, more + r * width, width, epsilon);
  for (int64_t i = 0; i < rows * width; i++) x[i] += more[i];
}

/* qkv [rows][(heads + 2 · kv_heads) · head_width] of x [rows][hidden], rotated; space
   [rows][hidden]. */
void before_attention(const Layer *l, const REAL *x, const REAL *cosine, const REAL *sine,
                      REAL *qkv, REAL *space, int64_t rows, int threads) {
  const int64_t width = (l->heads + 2 * l->kv_heads) * l->head_width;
  for (int64_t r = 0; r < rows; r++)
    norm_row(x + r * l->hidden, l->norm, space + r * l->hidden, l->hidden, l->epsilon);
  multiply(space, l->hidden, l->qkv, l->qkv_bias, qkv, rows, l->hidden, width, threads);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < l->heads + l->kv_heads; h++) {
      REAL *head = qkv + r * width + h * l->head_width;
      const REAL *weight = h < l->heads ? l->query_norm : l->key_norm;
      if (weight) norm_row(head, weight, head, l->head_width, l->head_epsilon);
      rotate(head, cosine + r * l->head_width, sine + r * l->head_width, l->head_width);
    }
}

/* x [rows][hidden] in place, given what its heads have seen; space [rows][hidden + 3 · inner]. */
void after_attention(const Layer *l, REAL *x, const REAL *seen, REAL *space, int64_t rows,
                     int threads) {
  const int64_t hidden = l->hidden, inner = l->inner;
  REAL *row = space, *both = row + rows * hidden, *gated = both + 2 * rows * inner;
  multiply(seen, l->heads * l->head_width, l->out, l->out_bias, row, rows, l->heads * l->head_width,
           hidden, threads);
  add_normed(x, row, l->added_norm, rows, hidden, l->epsilon);
  for (int64_t r = 0; r < rows; r++)
    norm_row(x + r * hidden, l->inner_norm, row + r * hidden, hidden, l->inner_epsilon);
  multiply(row, hidden, l->gate_up, l->gate_up_bias, both, rows, hidden, 2 * inner, threads);
  for (int64_t r = 0; r < rows; r++)
    gate_row(both + 2 * r * inner, gated + r * inner, inner, (int)l->is_gelu);
  multiply(gated, inner, l->down, l->down_bias, row, rows, inner, hidden, threads);
  add_normed(x, row, l->inner_added_norm, rows, hidden, l->inner_epsilon);
}

/* Layers one after the other, of rows that each attend alone; x in place, `angles` cosines and
   sines of each layer. 0, or 1 when there was no memory. space [rows][hidden + (2 · heads + 2 ·
   kv_heads) · head_width + 3 · inner] */
int single_rows(const Layer *layers, const Seen *seen, int64_t count, REAL *x,
                const REAL *const *angles, REAL *space, int64_t rows, int threads) {
  for (int64_t i = 0; i < count; i++) {
    const Layer *l = layers + i;
    const Seen *s = seen + i;
    const int64_t d = l->head_width, width = (l->heads + 2 * l->kv_heads) * d;
    REAL *qkv = space, *heads = qkv + rows * width, *rest = heads + rows * l->heads * d;
    const REAL *key = qkv + l->heads * d, *value = key + l->kv_heads * d;
    before_attention(l, x, angles[2 * i], angles[2 * i + 1], qkv, rest, rows, threads);
    put(key, width, d, s->slots, s->keys, rows, l->kv_heads, d);
    put(value, width, d, s->slots, s->values, rows, l->kv_heads, d);
    if (attend(qkv, width, d, s->keys, s->values, s->pages, s->most_pages, s->begin, s->end, heads,
               rows, l->kv_heads, l->heads / l->kv_heads, d, d, l->scale, threads))
      return 1;
    after_attention(l, x, heads, rest, rows, threads);
  }
  return 0;
}
