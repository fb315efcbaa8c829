/* All rows of one request at once: how does each attend to the rows up to itself?

   Keys and values of a head are laid out as products.c wants a weight, and blocks of rows are
   multiplied by no more of them than the last row of the block sees. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

#define ROWS 48 /* of a block */

typedef int (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);

/* products.c */
int panel_width(void);
void multiply_part(const REAL *x, int64_t x_stride, const REAL *weight, int64_t panel_depth,
                   REAL *out, int64_t out_stride, int64_t rows, int64_t depth, int64_t columns);

/* Row r, head h of each lies at r · row_stride + h · head_stride. */
typedef struct {
  const REAL *query, *keys, *values;
  REAL *out; /* [rows][heads · group][value_width] */
  int64_t query_row, query_head, key_row, key_head, value_row, value_head;
  int64_t rows, heads, group, key_width, value_width;
  int64_t window; /* how many rows a row sees, itself included; 0: all before it */
  REAL scale;
  int64_t taken;
  int failed;
} Whole;

static parallel_fn run_parallel;

/* One key/value head: all rows of its `group` queries. */
static void one(const Whole *w, int64_t head, REAL *space) {
  const int64_t wide = panel_width(), T = w->rows, d = w->key_width, e = w->value_width;
  const int64_t key_panels = (T + wide - 1) / wide, value_panels = (e + wide - 1) / wide;
  REAL *keys = space, *values = keys + key_panels * wide * d;
  REAL *scores = values + value_panels * wide * T;
  const REAL *from = w->keys + head * w->key_head;
  for (int64_t t = 0; t < key_panels * wide; t++)
    for (int64_t i = 0; i < d; i++)
      keys[(t / wide * d + i) * wide + t % wide] = t < T ? from[t * w->key_row + i] : 0;
  from = w->values + head * w->value_head;
  for (int64_t p = 0; p < value_panels; p++)
    for (int64_t t = 0; t < T; t++)
      for (int64_t i = 0, at = p * wide; i < wide; i++, at++)
        values[(p * T + t) * wide + i] = at < e ? from[t * w->value_row + at] : 0;
  /* soft_max may write behind a line's end */
  const int64_t stride = (T + 2 * WIDE - 1) / WIDE * WIDE;
  for (int64_t g = 0; g < w->group; g++)
    for (int64_t row = 0; row < T; row += ROWS) {
      const int64_t end = row + ROWS < T ? row + ROWS : T;
      const int64_t least = w->window && row + 1 > w->window ? row + 1 - w->window : 0;
      const int64_t first = least / wide * wide, seen = end - first;
      const REAL *query = w->query + row * w->query_row + (head * w->group + g) * w->query_head;
      multiply_part(query, w->query_row, keys + first * d, d, scores, stride, end - row, d, seen);
      for (int64_t r = row; r < end; r++) {
        REAL *line = scores + (r - row) * stride;
        const int64_t begin = (w->window && r + 1 > w->window ? r + 1 - w->window : 0) - first;
        const int64_t count = r + 1 - first - begin;
        for (int64_t i = begin; i < begin + count; i++) line[i] *= w->scale;
        soft_max(line + begin, count);
        for (int64_t i = 0; i < begin; i++) line[i] = 0;
        for (int64_t i = begin + count; i < seen; i++) line[i] = 0;
      }
      multiply_part(scores, stride, values + first * wide, T,
                    w->out + (row * w->heads * w->group + head * w->group + g) * e,
                    w->heads * w->group * e, end - row, seen, e);
    }
}

static void work(void *whole) {
  Whole *w = whole;
  const int64_t wide = panel_width(), padded = w->rows + wide;
  REAL *space = malloc(sizeof(REAL) * (padded * w->key_width + (w->value_width + wide) * w->rows +
                                       ROWS * (w->rows + 2 * WIDE)));
  if (!space) {
    w->failed = 1;
    return;
  }
  for (;;) {
    const int64_t head = __atomic_fetch_add(&w->taken, 1, __ATOMIC_RELAXED);
    if (head >= w->heads) break;
    one(w, head, space);
  }
  free(space);
}

void share_threads_to_attend_whole(void *parallel) { run_parallel = (parallel_fn)parallel; }

/* Strides of queries, keys and values as pairs of row and head. 0, or 1 without memory. */
int attend_whole(const REAL *query, const REAL *keys, const REAL *values, const int64_t *strides,
                 REAL *out, int64_t rows, int64_t heads, int64_t group, int64_t key_width,
                 int64_t value_width, int64_t window, REAL scale, int threads) {
  Whole w = {query, keys, values, out, strides[0], strides[1], strides[2], strides[3], strides[4],
             strides[5], rows, heads, group, key_width, value_width, window, scale, 0, 0};
  if (threads > 1 && run_parallel)
    run_parallel(work, &w, (unsigned)threads, 0);
  else
    work(&w);
  return w.failed;
}
