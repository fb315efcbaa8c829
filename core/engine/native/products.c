/* Rows times a weight, for few rows and large weights: what does a decode step spend its time on?

   A weight [columns, depth] lies as panels of WIDTH columns, each panel depth × WIDTH numbers, so
   that it is read from memory once and in order; what comes next is fetched while the present part
   is multiplied, and into the second cache what comes after that.

   Every output is one chain of fused multiply-adds in the order of the depth, then the bias. So its
   bits depend neither on other rows, nor on threads, nor on how wide the processor's vectors
   are.

   A weight may lie there in bfloat16, half as wide, or as codes with a scale for a group of inputs;
   it is multiplied as the float32 that it is. */

#include <stdint.h>
#include <string.h>

#include "lines.h"
#include "real.h"

#ifndef VECTOR_BYTES
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define MOST_ROWS 12
#elif defined(__AVX2__) && defined(__FMA__)
#define VECTOR_BYTES 32
#define MOST_ROWS 6
#elif defined(__aarch64__)
#define VECTOR_BYTES 16
#define MOST_ROWS 8
#else
#error "this processor has no fused multiply-add that this file knows"
#endif
#endif

#define LANES (VECTOR_BYTES / (int)sizeof(REAL))
#define WIDTH (2 * LANES)
/* of the depth: with what comes next, half of the nearest cache while all rows pass over it */
#define CHUNK (16384 / (WIDTH * (int)sizeof(REAL)))
#define AHEAD 16384  /* bytes beyond what comes next */
#ifndef LARGE
/* bytes of a weight that drives out of the caches what it is multiplied into */
#define LARGE (32 << 20)
#endif
#define BLOCK 48   /* rows that are summed up beside each other */
#define SHARED 8   /* panels that a thread takes at once */

typedef REAL lanes __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t halves __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));
typedef uint8_t codes __attribute__((vector_size(LANES)));
typedef int (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);

/* A weight as codes: number of the code − zero point, times scale (`weights/packed.py`). */
typedef struct {
  const uint8_t *codes;    /* [panels, depth, WIDTH]; of 4 bits, a byte has columns j, j + LANES */
  const float *scales;     /* [panels, groups, WIDTH] */
  const uint8_t *zeros;    /* the same; null: none */
  const int32_t *group_of; /* [depth]; null: every `group_depth` lines are a group */
  int64_t group_depth, groups, bits;
  int64_t mantissa; /* bits of the mantissa of a code with a sign; −1: codes are integers */
  float unit; /* of such numbers: 2^(−14 − mantissa), the smallest of a half with this mantissa */
  int32_t is_half;  /* products are those of the values rounded to bfloat16 */
} Coded;

typedef struct {
  const REAL *x, *bias;
  const char *weight;
  REAL *out;
  int64_t x_stride, out_stride, rows, depth, columns, panel_depth, panels;
  int64_t taken;
  int streams;  /* out is written past the caches */
  int is_half;  /* the weight is in bfloat16 */
  const Coded *coded;  /* the weight is these codes */
} Product;

static parallel_fn run_parallel;

static inline void fetch(const char *line) {
  __builtin_prefetch(line);
  __builtin_prefetch(line + AHEAD, 0, 2);
}

/* n rows against `depth` lines of a panel, on top of `sums` unless fresh. The n and fresh are
   constants where it is used. */
static inline __attribute__((always_inline)) void tile(
    const int n, const int fresh, const REAL *x, int64_t x_stride, const REAL *panel,
    int64_t depth, REAL *sums, const char *next, int64_t share) {
  lanes left[MOST_ROWS], right[MOST_ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < n; r++) {
    if (fresh) {
      left[r] = right[r] = (lanes){0};
    } else {
      memcpy(&left[r], sums + r * WIDTH, sizeof(lanes));
      memcpy(&right[r], sums + r * WIDTH + LANES, sizeof(lanes));
    }
  }
  for (int64_t k = 0; k < depth; k++) {
    lanes a, b;
    memcpy(&a, panel + k * WIDTH, sizeof(lanes));
    memcpy(&b, panel + k * WIDTH + LANES, sizeof(lanes));
    fetch(next + k * share);
#pragma GCC unroll 16
    for (int r = 0; r < n; r++) {
      const REAL one = x[r * x_stride + k];
      left[r] += a * one;
      right[r] += b * one;
      /* One group fetches both lines of two vectors, apart: neighbours take as long as three. */
      if (r == n / 2 && share > LINE) fetch(next + k * share + LINE);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < n; r++) {
    memcpy(sums + r * WIDTH, &left[r], sizeof(lanes));
    memcpy(sums + r * WIDTH + LANES, &right[r], sizeof(lanes));
  }
}

#define CASE(n) \
  case n: \
    if (fresh) tile(n, 1, x, x_stride, panel, depth, sums, next, share); \
    else tile(n, 0, x, x_stride, panel, depth, sums, next, share); \
    break;

static void some_rows(int n, int fresh, const REAL *x, int64_t x_stride, const REAL *panel,
                      int64_t depth, REAL *sums, const char *next, int64_t share) {
  switch (n) {
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if MOST_ROWS > 6
    CASE(7) CASE(8)
#endif
#if MOST_ROWS > 8
    CASE(9) CASE(10) CASE(11) CASE(12)
#endif
  }
}

/* `depth` lines of a panel in bfloat16, as float32. */
static const float *widened(const char *lines, int64_t depth, float *into) {
  for (int64_t at = 0; at < depth * WIDTH; at += VECTOR_BYTES / 4) {
    halves narrow;
    memcpy(&narrow, lines + 2 * at, sizeof narrow);
    const words wide = __builtin_convertvector(narrow, words) << 16;
    memcpy(into + at, &wide, sizeof wide);
  }
  return into;
}

#if REAL_BITS == 32
/* LANES codes of a byte each. */
static inline __attribute__((always_inline)) words codes_at(const uint8_t *at) {
#if defined(__AVX512F__) && VECTOR_BYTES == 64
  return (words)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
#elif defined(__AVX2__) && VECTOR_BYTES == 32
  return (words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
#else
  codes narrow;
  memcpy(&narrow, at, sizeof narrow);
  return __builtin_convertvector(narrow, words);
#endif
}

static inline __attribute__((always_inline)) lanes numbers_of(const Coded *c, words code) {
  if (c->mantissa < 0) return __builtin_convertvector(code, lanes);
  const uint32_t ones = (1u << c->mantissa) - 1;
  const words size = code & ((1u << (c->bits - 1)) - 1), power = size >> (uint32_t)c->mantissa;
#if (defined(__AVX512F__) && VECTOR_BYTES == 64) || (defined(__F16C__) && VECTOR_BYTES == 32)
  /* a half of the same digits: its processor knows what is below the least normal number */
  const words half = size << (uint32_t)(10 - c->mantissa) | code >> (uint32_t)(c->bits - 1) << 15;
  (void)ones, (void)power;
#if VECTOR_BYTES == 64
  return (lanes)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)half));
#else
  return (lanes)_mm256_cvtph_ps((__m128i)__builtin_convertvector(half, halves));
#endif
#else
  const words is_normal = (words)(power > 0) & 1;
  const words whole = ((size & ones) + (is_normal << (uint32_t)c->mantissa)) << (power - is_normal);
  const lanes number = __builtin_convertvector(whole, lanes) * c->unit;
  words bits;
  memcpy(&bits, &number, sizeof bits);
  bits |= code >> (uint32_t)(c->bits - 1) << 31;
  lanes signed_number;
  memcpy(&signed_number, &bits, sizeof bits);
  return signed_number;
#endif
}

static inline __attribute__((always_inline)) lanes rounded(lanes value) {
  words bits;
  memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
  memcpy(&value, &bits, sizeof bits);
  return value;
}

static inline __attribute__((always_inline)) void unpacked_lines(
    const Coded *c, const int bits, const int has_zeros, int64_t panel, int64_t panel_depth,
    int64_t from, int64_t depth, float *into) {
  const int64_t line = WIDTH * bits / 8;
  const uint8_t *at = c->codes + (panel * panel_depth + from) * line;
  int64_t group = c->group_of ? -1 : from / c->group_depth, ends = 0;
  lanes scale[2] = {{0}, {0}}, zero[2] = {{0}, {0}};
  for (int64_t i = 0; i < depth; i++, at += line, into += WIDTH) {
    const int64_t this =
        c->group_of ? c->group_of[from + i] : i < ends ? group : (from + i) / c->group_depth;
    if (i == 0 || this != group) {
      const int64_t place = (panel * c->groups + this) * WIDTH;
      memcpy(scale, c->scales + place, sizeof scale);
      if (has_zeros)
        for (int side = 0; side < 2; side++)
          zero[side] = __builtin_convertvector(codes_at(c->zeros + place + side * LANES), lanes);
      group = this;
      ends = c->group_of ? 0 : (this + 1) * c->group_depth - from;
    }
    for (int side = 0; side < 2; side++) {
      words code = codes_at(at + (bits == 8 ? side * LANES : 0));
      if (bits == 4) code = side ? code >> 4 : code & 15;
      lanes value = numbers_of(c, code);
      if (has_zeros) value -= zero[side];
      value *= scale[side];
      if (c->is_half) value = rounded(value);
      memcpy(into + side * LANES, &value, sizeof value);
    }
  }
}

/* `depth` lines of a panel of codes, as float32. */
static const float *unpacked(const Coded *c, int64_t panel, int64_t panel_depth, int64_t from,
                             int64_t depth, float *into) {
  if (c->bits == 8 && c->zeros)
    unpacked_lines(c, 8, 1, panel, panel_depth, from, depth, into);
  else if (c->bits == 8)
    unpacked_lines(c, 8, 0, panel, panel_depth, from, depth, into);
  else if (c->zeros)
    unpacked_lines(c, 4, 1, panel, panel_depth, from, depth, into);
  else
    unpacked_lines(c, 4, 0, panel, panel_depth, from, depth, into);
  return into;
}
#endif

/* Lines [k, k + depth) of a panel as they are multiplied: where they lie, or unpacked. */
static inline const REAL *lines_of(const Product *p, int64_t panel, int64_t k, int64_t depth,
                                   const char *held, float *space) {
#if REAL_BITS == 32
  if (p->coded) return unpacked(p->coded, panel, p->panel_depth, k, depth, space);
  if (p->is_half) return widened(held, depth, space);
#endif
  (void)panel, (void)k, (void)depth, (void)space;
  return (const REAL *)held;
}

static int64_t line_bytes(const Product *p) {
  if (p->coded) return WIDTH * p->coded->bits / 8;
  return WIDTH * (p->is_half ? 2 : (int64_t)sizeof(REAL));
}

static void one_panel(const Product *p, int64_t number) {
  REAL sums[BLOCK * WIDTH] __attribute__((aligned(64)));
  float space[CHUNK * WIDTH] __attribute__((aligned(64)));
  const int64_t line = line_bytes(p);
  const char *panel = p->weight + number * p->panel_depth * line;
  const int64_t first = number * WIDTH, left = p->columns - first;
  const int64_t wide = left < WIDTH ? left : WIDTH;
  const int64_t chunks = (p->depth + CHUNK - 1) / CHUNK, step = (p->depth + chunks - 1) / chunks;
  for (int64_t row = 0; row < p->rows; row += BLOCK) {
    const int count = p->rows - row < BLOCK ? (int)(p->rows - row) : BLOCK;
    const int groups = (count + MOST_ROWS - 1) / MOST_ROWS;
    /* bytes that a group fetches for each line it multiplies */
    const int64_t share = line / groups;
    for (int64_t k = 0; k < p->depth; k += step) {
      const int64_t depth = p->depth - k < step ? p->depth - k : step;
      const char *held = panel + k * line, *next = held + depth * line;
      const REAL *here = lines_of(p, number, k, depth, held, space);
      for (int g = 0, at = 0; g < groups; g++) {
        const int n = (count - at + groups - g - 1) / (groups - g);
        some_rows(n, k == 0, p->x + (row + at) * p->x_stride + k, p->x_stride, here, depth,
                  sums + at * WIDTH, next + g * depth * share, share);
        at += n;
      }
    }
    for (int r = 0; r < count; r++) {
      REAL *out = p->out + (row + r) * p->out_stride + first, *sum = sums + r * WIDTH;
      if (p->bias)
        for (int64_t c = 0; c < wide; c++) sum[c] += p->bias[first + c];
      if (p->streams && wide == WIDTH && (uintptr_t)out % LINE == 0)
        for (int64_t c = 0; c < WIDTH; c += LINE / (int)sizeof(REAL))
          stream_line((char *)(out + c), (const char *)(sum + c));
      else
        memcpy(out, sum, sizeof(REAL) * wide);
    }
  }
}

/* Takes panels until there are none left; right with any number of threads. */
static void work(void *product) {
  Product *p = product;
  for (;;) {
    const int64_t from = __atomic_fetch_add(&p->taken, SHARED, __ATOMIC_RELAXED);
    if (from >= p->panels) break;
    const int64_t to = from + SHARED < p->panels ? from + SHARED : p->panels;
    for (int64_t number = from; number < to; number++) one_panel(p, number);
  }
  if (p->streams) streamed();
}

/* Columns of a panel. */
int panel_width(void) { return WIDTH; }

/* GOMP_parallel of the library that torch's threads belong to; without it one thread does all. */
void share_threads(void *parallel) { run_parallel = (parallel_fn)parallel; }

static void product(const REAL *x, int64_t x_stride, const char *weight, int is_half,
                    const Coded *coded, const REAL *bias, REAL *out, int64_t rows, int64_t depth,
                    int64_t columns, int threads) {
  const int64_t size = is_half ? 2 : sizeof(REAL);
  const int64_t panels = (columns + WIDTH - 1) / WIDTH, bytes = depth * columns * size;
  const int streams = WIDTH * sizeof(REAL) % LINE == 0 && bytes >= LARGE;
  Product p = {x,     bias,    weight, out,    x_stride, columns, rows,
               depth, columns, depth,  panels, 0,        streams, is_half, coded};
  if (threads > 1 && run_parallel)
    run_parallel(work, &p, (unsigned)threads, 0);
  else
    work(&p);
}

/* out [rows, columns] = x [rows, depth] · weight + bias (which may be null). */
void multiply(const REAL *x, int64_t x_stride, const REAL *weight, const REAL *bias, REAL *out,
              int64_t rows, int64_t depth, int64_t columns, int threads) {
  product(x, x_stride, (const char *)weight, 0, 0, bias, out, rows, depth, columns, threads);
}

#if REAL_BITS == 32
/* The same with a weight in bfloat16. */
void multiply_half(const float *x, int64_t x_stride, const uint16_t *weight, const float *bias,
                   float *out, int64_t rows, int64_t depth, int64_t columns, int threads) {
  product(x, x_stride, (const char *)weight, 1, 0, bias, out, rows, depth, columns, threads);
}

/* The same with a weight as codes. */
void multiply_coded(const float *x, int64_t x_stride, const Coded *weight, const float *bias,
                    float *out, int64_t rows, int64_t depth, int64_t columns, int threads) {
  const char *codes_at = (const char *)weight->codes;
  product(x, x_stride, codes_at, 0, weight, bias, out, rows, depth, columns, threads);
}
#endif

/* The same without a bias, in this thread, with the first `depth` lines of panels that have
   `panel_depth`; `out_stride` between rows. */
void multiply_part(const REAL *x, int64_t x_stride, const REAL *weight, int64_t panel_depth,
                   REAL *out, int64_t out_stride, int64_t rows, int64_t depth, int64_t columns) {
  Product p = {x,     0,       (const char *)weight, out, x_stride, out_stride, rows,
               depth, columns, panel_depth, (columns + WIDTH - 1) / WIDTH, 0, 0, 0, 0};
  work(&p);
}
