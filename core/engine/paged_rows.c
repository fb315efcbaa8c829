/* One new row for each of many sequences: how does it attend to that sequence's own pages?

   Keys and values are read where they lie. Sums of sixteen run side by side in a fixed order, so that a row's bits depend
   neither on other rows, nor on threads, nor on how wide the processor's vectors are. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

#define PAGE 16 /* tokens */

typedef int (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
  const REAL *query; /* row r, head h at r · row_stride + h · head_stride */
  const REAL *keys, *values; /* a page of one head after the other, [page · heads + head][PAGE][width] */
  const int64_t *pages; /* [rows][most_pages] */
  const int32_t *begin, *end; /* of each row, the tokens of its pages that it sees */
  REAL *out; /* [rows][heads · group][value_width] */
  int64_t row_stride, head_stride, rows, heads, group, most_pages, key_width, value_width;
  REAL scale;
  int64_t taken;
  int failed;
} Attention;

static parallel_fn run_parallel;

/* `count` ≤ PAGE scores of one query against the tokens of a page. */
static inline void page_scores(const REAL *query, const REAL *keys, int64_t width, REAL scale,
                               int count, REAL *scores) {
  int t = 0;
  for (; t + 4 <= count; t += 4) {
    lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    const REAL *k = keys + t * width;
    for (int64_t i = 0; i < width; i += WIDE) {
      const int64_t left = width - i;
      const lanes q = load(query + i, left);
      s0 += q * load(k + i, left);
      s1 += q * load(k + width + i, left);
      s2 += q * load(k + 2 * width + i, left);
      s3 += q * load(k + 3 * width + i, left);
    }
    scores[t] = sum(s0) * scale;
    scores[t + 1] = sum(s1) * scale;
    scores[t + 2] = sum(s2) * scale;
    scores[t + 3] = sum(s3) * scale;
  }
  for (; t < count; t++) {
    lanes s = {0};
    for (int64_t i = 0; i < width; i += WIDE)
      s += load(query + i, width - i) * load(keys + t * width + i, width - i);
    scores[t] = sum(s) * scale;
  }
}

/* One key/value head of one row: its `group` queries. */
static void one(const Attention *a, int64_t row, int64_t head, REAL *scores) {
  const int64_t begin = a->begin[row], end = a->end[row], first = begin / PAGE;
  const int64_t *pages = a->pages + row * a->most_pages;
  const int64_t key_page = PAGE * a->key_width, value_page = PAGE * a->value_width;
  const int64_t room = (end - begin + 2 * WIDE) / WIDE * WIDE;
  for (int64_t page = first; page * PAGE < end; page++) {
    const int64_t from = page == first ? begin % PAGE : 0;
    const int64_t to = end - page * PAGE < PAGE ? end - page * PAGE : PAGE;
    const REAL *keys = a->keys + (pages[page] * a->heads + head) * key_page;
    for (int64_t g = 0; g < a->group; g++)
      page_scores(a->query + row * a->row_stride + (head * a->group + g) * a->head_stride,
                  keys + from * a->key_width, a->key_width, a->scale, (int)(to - from),
                  scores + g * room + page * PAGE + from - begin);
  }
  for (int64_t g = 0; g < a->group; g++) {
    REAL *weights = scores + g * room;
    REAL *out = a->out + ((row * a->heads + head) * a->group + g) * a->value_width;
    soft_max(weights, end - begin);
    for (int64_t i = 0; i < a->value_width; i += 4 * WIDE) {
      const int64_t left = a->value_width - i;
      lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
      for (int64_t page = first; page * PAGE < end; page++) {
        const int64_t from = page == first ? begin % PAGE : 0;
        const int64_t to = end - page * PAGE < PAGE ? end - page * PAGE : PAGE;
        const REAL *values = a->values + (pages[page] * a->heads + head) * value_page + i;
        const REAL *w = weights + page * PAGE - begin;
        for (int64_t t = from; t < to; t++) {
          const REAL *v = values + t * a->value_width;
          s0 += load(v, left) * w[t];
          if (left > WIDE) s1 += load(v + WIDE, left - WIDE) * w[t];
          if (left > 2 * WIDE) s2 += load(v + 2 * WIDE, left - 2 * WIDE) * w[t];
          if (left > 3 * WIDE) s3 += load(v + 3 * WIDE, left - 3 * WIDE) * w[t];
        }
      }
      const lanes sums[4] = {s0, s1, s2, s3};
      memcpy(out + i, sums, sizeof(REAL) * (left < 4 * WIDE ? left : 4 * WIDE));
    }
  }
}

static void work(void *attention) {
  Attention *a = attention;
  int64_t longest = 0;
  for (int64_t r = 0; r < a->rows; r++)
    if (a->end[r] - a->begin[r] > longest) longest = a->end[r] - a->begin[r];
  REAL *scores = malloc(sizeof(REAL) * a->group * (size_t)(longest + 2 * WIDE));
  if (!scores) {
    a->failed = 1;
    return;
  }
  for (;;) {
    const int64_t task = __atomic_fetch_add(&a->taken, 1, __ATOMIC_RELAXED);
    if (task >= a->rows * a->heads) break;
    one(a, task / a->heads, task % a->heads, scores);
  }
  free(scores);
}

void share_threads_to_attend(void *parallel) { run_parallel = (parallel_fn)parallel; }

/* 0, or 1 when there was no memory for the scores. */
int attend(const REAL *query, int64_t row_stride, int64_t head_stride, const REAL *keys,
           const REAL *values, const int64_t *pages, int64_t most_pages, const int32_t *begin,
           const int32_t *end, REAL *out, int64_t rows, int64_t heads, int64_t group,
           int64_t key_width, int64_t value_width, REAL scale, int threads) {
  Attention a = {query, keys, values, pages, begin, end, out, row_stride, head_stride, rows,
                 heads, group, most_pages, key_width, value_width, scale, 0, 0};
  if (threads > 1 && run_parallel)
    run_parallel(work, &a, (unsigned)threads, 0);
  else
    work(&a);
  return a.failed;
}

/* Keys and values of `rows` new tokens into their slots of `width` numbers; slots [rows][heads]. */
void put(const REAL *from, int64_t row_stride, int64_t head_stride, const int64_t *slots, REAL *pool,
         int64_t rows, int64_t heads, int64_t width) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < heads; h++)
      memcpy(pool + slots[r * heads + h] * width, from + r * row_stride + h * head_stride, 4 * width);
}
