/* The tree over the rows of a request: all hashes of new rows in one call (commit.py says which).

   Nodes lie in the order in which they come to be: a row's leaf, then what it completes, from the
   bottom up. So the subtree over 2^h rows is 2^(h+1) − 1 nodes on end, its top the last. */

#include <stdint.h>
#include <string.h>

#if !defined(__SHA__) || !defined(__SSE4_1__)
#error "this processor has no instructions for SHA-256 that this file knows"
#endif
#include <immintrin.h>

#define HASH 32
#define PART 1024 /* bytes of a row that are one leaf of its own tree */
#define MOST_BLOCKS ((PART + 5 + 9 + 63) / 64)
#define MOST_DEPTH 64 /* of a tree over parts: it has fewer than 2^64 */
#define LANES 4       /* one message alone waits for itself most of the time */

enum { LEAF, NODE, ROOT };

static const uint32_t K[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* What is hashed, piece after piece. */
typedef struct {
  uint8_t bytes[64 * MOST_BLOCKS];
  int64_t size;
} Message;

static void begin(Message *m, const uint8_t tag) {
  m->bytes[0] = tag;
  m->size = 1;
}

static void add(Message *m, const uint8_t *bytes, const int64_t count) {
  memcpy(m->bytes + m->size, bytes, count);
  m->size += count;
}

/* SHA-256 of n messages of one size side by side. */
static inline __attribute__((always_inline)) void side_by_side(const int n, Message *messages,
                                                               uint8_t (*out)[HASH]) {
  const int64_t size = messages[0].size, blocks = (size + 9 + 63) / 64;
  for (int i = 0; i < n; i++) {
    uint8_t *end = messages[i].bytes + 64 * blocks;
    memset(messages[i].bytes + size, 0, 64 * blocks - size);
    messages[i].bytes[size] = 0x80;
    for (int b = 0; b < 4; b++) *--end = (uint8_t)(8 * size >> 8 * b);
  }
  const __m128i turn = _mm_set_epi64x(0x0c0d0e0f08090a0bULL, 0x0405060700010203ULL);
  __m128i abef[LANES], cdgh[LANES];
  for (int i = 0; i < n; i++) {
    abef[i] = _mm_set_epi64x(0x6a09e667bb67ae85ULL, 0x510e527f9b05688cULL);
    cdgh[i] = _mm_set_epi64x(0x3c6ef372a54ff53aULL, 0x1f83d9ab5be0cd19ULL);
  }
  for (int64_t block = 0; block < blocks; block++) {
    __m128i w[LANES][4], before_abef[LANES], before_cdgh[LANES];
    for (int i = 0; i < n; i++) {
      before_abef[i] = abef[i];
      before_cdgh[i] = cdgh[i];
      for (int j = 0; j < 4; j++)
        w[i][j] = _mm_shuffle_epi8(
            _mm_loadu_si128((const __m128i *)(messages[i].bytes + 64 * block + 16 * j)), turn);
    }
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) {
#pragma GCC unroll 4
      for (int i = 0; i < n; i++) {
        __m128i *v = w[i];
        if (g >= 4) { /* the next four words, in the place of the first of the last sixteen */
          const __m128i last = v[(g + 3) % 4];
          __m128i next = _mm_sha256msg1_epu32(v[g % 4], v[(g + 1) % 4]);
          next = _mm_add_epi32(next, _mm_alignr_epi8(last, v[(g + 2) % 4], 4));
          v[g % 4] = _mm_sha256msg2_epu32(next, last);
        }
        const __m128i sum = _mm_add_epi32(v[g % 4], _mm_load_si128((const __m128i *)(K + 4 * g)));
        cdgh[i] = _mm_sha256rnds2_epu32(cdgh[i], abef[i], sum);
        abef[i] = _mm_sha256rnds2_epu32(abef[i], cdgh[i], _mm_shuffle_epi32(sum, 0x0e));
      }
    }
    for (int i = 0; i < n; i++) {
      abef[i] = _mm_add_epi32(abef[i], before_abef[i]);
      cdgh[i] = _mm_add_epi32(cdgh[i], before_cdgh[i]);
    }
  }
  for (int i = 0; i < n; i++) {
    const __m128i abcd = _mm_unpackhi_epi64(cdgh[i], abef[i]);
    const __m128i efgh = _mm_unpacklo_epi64(cdgh[i], abef[i]);
    const __m128i swap = _mm_set_epi64x(0x0001020304050607ULL, 0x08090a0b0c0d0e0fULL);
    _mm_storeu_si128((__m128i *)out[i], _mm_shuffle_epi8(abcd, swap));
    _mm_storeu_si128((__m128i *)(out[i] + 16), _mm_shuffle_epi8(efgh, swap));
  }
}

/* SHA-256 of up to LANES messages of one size; not inlined, so that its code stays cached. */
static __attribute__((noinline)) void sha(const int n, Message *messages, uint8_t (*out)[HASH]) {
  if (n == LANES)
    side_by_side(LANES, messages, out);
  else
    for (int i = 0; i < n; i++) side_by_side(1, messages + i, out + i);
}

/* Of n pairs of nodes. `out` may be one of them. */
static void parents(const int n, const uint8_t (*left)[HASH], const uint8_t (*right)[HASH],
                    uint8_t (*out)[HASH]) {
  Message m[LANES];
  for (int i = 0; i < n; i++) {
    begin(m + i, NODE);
    add(m + i, left[i], HASH);
    add(m + i, right[i], HASH);
  }
  sha(n, m, out);
}

/* The tops of the trees over the parts of n rows. */
static void tops(const int n, const uint8_t *rows, const int64_t bytes, uint8_t (*out)[HASH]) {
  uint8_t full[MOST_DEPTH][LANES][HASH]; /* the full subtrees so far, the smallest last */
  int depth = 0;
  for (int64_t part = 0, at = 0; at < bytes; part++, at += PART) {
    Message m[LANES];
    for (int i = 0; i < n; i++) {
      begin(m + i, LEAF);
      add(m + i, rows + i * bytes + at, bytes - at < PART ? bytes - at : PART);
    }
    sha(n, m, full[depth++]);
    for (int64_t k = part; k & 1; k >>= 1, depth--)
      parents(n, full[depth - 2], full[depth - 1], full[depth - 2]);
  }
  for (; depth > 1; depth--) parents(n, full[depth - 2], full[depth - 1], full[depth - 2]);
  memcpy(out, full[0], n * HASH);
}

/* Four bytes, the highest first. */
static void u32be(uint8_t out[4], const uint64_t number) {
  for (int b = 0; b < 4; b++) out[b] = (uint8_t)(number >> (24 - 8 * b));
}

/* The leaves of n rows from number `first` on, each in a lane of its own. */
static void leaves(const int n, const uint64_t first, const uint8_t *rows, const int64_t bytes,
                   uint8_t (*out)[HASH]) {
  uint8_t top[LANES][HASH];
  Message m[LANES];
  if (bytes > PART) tops(n, rows, bytes, top);
  for (int i = 0; i < n; i++) {
    uint8_t index[4];
    u32be(index, first + i);
    begin(m + i, LEAF);
    add(m + i, index, sizeof index);
    if (bytes > PART)
      add(m + i, top[i], HASH);
    else
      add(m + i, rows + i * bytes, bytes);
  }
  sha(n, m, out);
}

/* How many nodes the full subtrees over `rows` rows have. */
static int64_t nodes_of(const uint64_t rows) {
  return (int64_t)(2 * rows - (uint64_t)__builtin_popcountll(rows));
}

/* Adds `rows` rows of `row_bytes` to a tree that has `before` rows; `nodes` has room for all. */
void append_rows(uint8_t (*nodes)[HASH], int64_t before, const uint8_t *data, int64_t row_bytes,
                 int64_t rows) {
  const uint64_t end = (uint64_t)(before + rows);
  for (uint64_t first = (uint64_t)before; first < end;) {
    uint8_t leaf[LANES][HASH];
    const int count = end - first < LANES ? (int)(end - first) : LANES;
    leaves(count, first, data, row_bytes, leaf);
    for (int i = 0; i < count; i++) {
      uint8_t (*node)[HASH] = nodes + nodes_of(first + i);
      memcpy(node, leaf[i], HASH);
      /* it completes a subtree, and that one maybe another */
      for (int64_t h = 0; (first + i) >> h & 1; h++, node++)
        parents(1, node - (((int64_t)2 << h) - 1), node, node + 1);
    }
    first += count;
    data += count * row_bytes;
  }
}

/* The root over the first `rows` rows of a tree. */
void root_of_rows(const uint8_t (*nodes)[HASH], int64_t rows, uint8_t (*out)[HASH]) {
  uint8_t count[4];
  u32be(count, (uint64_t)rows);
  uint8_t top[1][HASH] = {{0}};
  uint64_t left = (uint64_t)rows;
  /* each full subtree, with what is smaller to its right */
  for (int is_first = 1; left; left &= left - 1, is_first = 0) {
    const uint8_t (*node)[HASH] = nodes + nodes_of(left) - 1;
    if (is_first)
      memcpy(top, node, HASH);
    else
      parents(1, node, top, top);
  }
  Message m;
  begin(&m, ROOT);
  add(&m, count, sizeof count);
  add(&m, top[0], HASH);
  sha(1, &m, out);
}
