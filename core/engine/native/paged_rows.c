/* One new row for each of many sequences: how does it attend to that sequence's own pages?

   Keys and values are read where they lie, once for several queries of a head, and the next page is
   fetched meanwhile. Sums of sixteen run side by side in a fixed order, so that a row's bits depend
   neither on other rows, nor on threads, nor on how wide the processor's vectors are. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

#define PAGE 16 /* tokens */
#define LINE 64 /* bytes that memory is fetched by */
#ifdef QUERIES /* given, with BESIDE, where another processor's are tried */
#elif defined(__AVX512F__)
#define QUERIES 4 /* of a head at once */
#define BESIDE 4  /* tokens, or vectors of a value, for each of them */
#else
#define QUERIES 2
#define BESIDE 2
#endif

typedef int (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
  const REAL *query; /* row r, head h at r · row_stride + h · head_stride */
  /* a page of one head after the other, [page · heads + head][PAGE][width] */
  const REAL *keys, *values;
  const int64_t *pages; /* [rows][most_pages] */
  const int32_t *begin, *end; /* of each row, the tokens of its pages that it sees */
  REAL *out; /* [rows][heads · group][value_width] */
  int64_t row_stride, head_stride, rows, heads, group, most_pages, key_width, value_width;
  REAL scale;
  int64_t taken;
  int failed;
} Attention;

static parallel_fn run_parallel;

/* Rows of weights or of what they give, `stride` numbers apart. */
typedef struct {
  REAL *at;
  int64_t stride;
} Beside;

/* Keys or values of up to PAGE tokens. */
typedef struct {
  const REAL *at;
  int count;
} Tokens;

/* Those of a page that a row sees. */
static inline Tokens seen(const Attention *a, const REAL *pool, int64_t width, int64_t row,
    int64_t head, int64_t page) {
  const int64_t begin = a->begin[row], end = a->end[row];
  const int64_t number = a->pages[row * a->most_pages + page];
  const int64_t from = page * PAGE < begin ? begin - page * PAGE : 0;
  const int64_t to = end - page * PAGE < PAGE ? end - page * PAGE : PAGE;
  return (Tokens){pool + ((number * a->heads + head) * PAGE + from) * width, (int)(to - from)};
}

/* Fetches those from number `first` on, which had no turn beside others. */
static inline void fetch(Tokens tokens, int first, int64_t width) {
  const char *end = (const char *)(tokens.at + tokens.count * width);
  for (const char *at = (const char *)(tokens.at + first * width); at < end; at += LINE)
    __builtin_prefetch(at);
}

/* The sums of four, each in the order of `sum`: halves of all four are added at once. */
static inline __attribute__((always_inline)) void four_sums(const lanes *of, REAL *to, REAL scale) {
#if defined(__AVX512F__) && REAL_BITS == 32
  const numbers low = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, high = low + 8;
  const numbers left = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}, right = left + 4;
  const numbers even = {0, 1, 4, 5, 8, 9, 12, 13}, odd = even + 2;
  const numbers first = {0, 2, 4, 6}, second = first + 1;
  const lanes a = __builtin_shuffle(of[0], of[1], low) + __builtin_shuffle(of[0], of[1], high);
  const lanes b = __builtin_shuffle(of[2], of[3], low) + __builtin_shuffle(of[2], of[3], high);
  const lanes c = __builtin_shuffle(a, b, left) + __builtin_shuffle(a, b, right);
  const lanes d = __builtin_shuffle(c, even) + __builtin_shuffle(c, odd);
  const lanes all = (__builtin_shuffle(d, first) + __builtin_shuffle(d, second)) * scale;
  memcpy(to, &all, 4 * sizeof(REAL));
#else
  for (int i = 0; i < 4; i++) to[i] = sum(of[i]) * scale;
#endif
}

/* Scores of n queries against `tokens` keys; those at `next` are fetched if there are any.
   Constants where it is used. */
static inline __attribute__((always_inline)) void dots(
    const int n, const int tokens, const REAL *query, int64_t stride, const REAL *keys,
    int64_t width, REAL scale, Beside scores, const REAL *next) {
  lanes s[QUERIES][BESIDE];
  memset(s, 0, sizeof s);
  for (int64_t i = 0; i < width; i += WIDE) {
    const int64_t left = width - i;
    lanes k[BESIDE];
#pragma GCC unroll 4
    for (int t = 0; t < tokens; t++) {
      k[t] = load(keys + t * width + i, left);
      if (next) __builtin_prefetch(next + t * width + i);
    }
#pragma GCC unroll 4
    for (int q = 0; q < n; q++) {
      const lanes one = load(query + q * stride + i, left);
#pragma GCC unroll 4
      for (int t = 0; t < tokens; t++) s[q][t] += one * k[t];
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < n; q++) {
    REAL *to = scores.at + q * scores.stride;
    if (tokens == 4) {
      four_sums(s[q], to, scale);
      continue;
    }
#pragma GCC unroll 4
    for (int t = 0; t < tokens; t++) to[t] = sum(s[q][t]) * scale;
  }
}

static inline __attribute__((always_inline)) void page_scores(
    const int n, const REAL *query, int64_t stride, Tokens keys, int64_t width, REAL scale,
    Beside scores, Tokens next) {
  int t = 0;
  for (; t + BESIDE <= keys.count; t += BESIDE) {
    const Beside here = {scores.at + t, scores.stride};
    dots(n, BESIDE, query, stride, keys.at + t * width, width, scale, here,
        t + BESIDE <= next.count ? next.at + t * width : 0);
  }
  fetch(next, t <= next.count ? t : next.count / BESIDE * BESIDE, width);
  for (; t < keys.count; t++) {
    const Beside here = {scores.at + t, scores.stride};
    dots(n, 1, query, stride, keys.at + t * width, width, scale, here, 0);
  }
}

/* `vectors` vectors of n outs, from number i on: weighted values on top. */
static inline __attribute__((always_inline)) void add_some(
    const int n, const int vectors, Beside weights, Tokens values, int64_t width, int64_t i,
    Beside out, Tokens next) {
  const int64_t left = width - i;
  lanes s[QUERIES][BESIDE];
#pragma GCC unroll 4
  for (int q = 0; q < n; q++)
#pragma GCC unroll 4
    for (int p = 0; p < vectors; p++)
      s[q][p] = load(out.at + q * out.stride + i + p * WIDE, left - p * WIDE);
  for (int t = 0; t < values.count; t++) {
    lanes v[BESIDE];
#pragma GCC unroll 4
    for (int p = 0; p < vectors; p++) {
      v[p] = load(values.at + t * width + i + p * WIDE, left - p * WIDE);
      if (t < next.count) __builtin_prefetch(next.at + t * width + i + p * WIDE);
    }
#pragma GCC unroll 4
    for (int q = 0; q < n; q++) {
      const REAL w = weights.at[q * weights.stride + t];
#pragma GCC unroll 4
      for (int p = 0; p < vectors; p++) s[q][p] += v[p] * w;
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < n; q++)
#pragma GCC unroll 4
    for (int p = 0; p < vectors; p++)
      store(out.at + q * out.stride + i + p * WIDE, s[q][p], left - p * WIDE);
}

static inline __attribute__((always_inline)) void add_values(
    const int n, Beside weights, Tokens values, int64_t width, Beside out, Tokens next) {
  int64_t i = 0;
  for (; i + BESIDE * WIDE <= width; i += BESIDE * WIDE)
    add_some(n, BESIDE, weights, values, width, i, out, next);
  for (; i < width; i += WIDE) add_some(n, 1, weights, values, width, i, out, next);
  if (values.count < next.count) fetch(next, values.count, width);
}

/* n queries of one key/value head of one row; `scores` are n times `room` numbers. What comes
   `after` is fetched at the end. */
static inline __attribute__((always_inline)) void some_queries(
    const int n, const Attention *a, int64_t row, int64_t head, int64_t from, REAL *scores,
    int64_t room, Tokens after) {
  const int64_t begin = a->begin[row], end = a->end[row];
  const int64_t first = begin / PAGE, last = (end - 1) / PAGE;
  const int64_t number = head * a->group + from, width = a->value_width;
  const REAL *query = a->query + row * a->row_stride + number * a->head_stride;
  const Beside out = {a->out + (row * a->heads * a->group + number) * width, width};
  Beside here = {scores, room};
  for (int64_t page = first; page <= last; page++) {
    const Tokens keys = seen(a, a->keys, a->key_width, row, head, page);
    const Tokens next = page < last ? seen(a, a->keys, a->key_width, row, head, page + 1)
                                    : seen(a, a->values, width, row, head, first);
    page_scores(n, query, a->head_stride, keys, a->key_width, a->scale, here, next);
    here.at += keys.count;
  }
  for (int q = 0; q < n; q++) soft_max(scores + q * room, end - begin);
  memset(out.at, 0, sizeof(REAL) * (size_t)(n * width));
  here.at = scores;
  for (int64_t page = first; page <= last; page++) {
    const Tokens values = seen(a, a->values, width, row, head, page);
    const Tokens next = page < last ? seen(a, a->values, width, row, head, page + 1) : after;
    add_values(n, here, values, width, out, next);
    here.at += values.count;
  }
}

/* One key/value head of one row: its `group` queries. */
static void one(const Attention *a, int64_t row, int64_t head, REAL *scores) {
  const int64_t room = (a->end[row] - a->begin[row] + 2 * WIDE) / WIDE * WIDE;
  const int64_t task = row * a->heads + head + 1, then = task / a->heads;
  for (int64_t from = 0; from < a->group; from += QUERIES) {
    Tokens after = {0, 0};
    if (from + QUERIES >= a->group && then < a->rows && a->key_width == a->value_width)
      after = seen(a, a->keys, a->key_width, then, task % a->heads, a->begin[then] / PAGE);
    switch (a->group - from) {
      case 1: some_queries(1, a, row, head, from, scores, room, after); break;
#if QUERIES > 2
      case 2: some_queries(2, a, row, head, from, scores, room, after); break;
      case 3: some_queries(3, a, row, head, from, scores, room, after); break;
#endif
      default: some_queries(QUERIES, a, row, head, from, scores, room, after);
    }
  }
}

static void work(void *attention) {
  Attention *a = attention;
  int64_t longest = 0;
  for (int64_t r = 0; r < a->rows; r++)
    if (a->end[r] - a->begin[r] > longest) longest = a->end[r] - a->begin[r];
  REAL *scores = malloc(sizeof(REAL) * QUERIES * (size_t)(longest + 2 * WIDE));
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
void put(const REAL *from, int64_t row_stride, int64_t head_stride, const int64_t *slots,
         REAL *pool, int64_t rows, int64_t heads, int64_t width) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < heads; h++)
      memcpy(pool + slots[r * heads + h] * width, from + r * row_stride + h * head_stride,
          4 * width);
}
