/* The tree over the rows of a request: all hashes that new rows come to, in one call (commit.py says which).

   Nodes lie in the order in which they come to be: a row's leaf, then what it completes, from the bottom up. So the subtree over
   2^h rows is 2^(h+1) − 1 nodes on end, its top the last of them. */

#include <stdint.h>
#include <string.h>

#if !defined(__SHA__) || !defined(__SSE4_1__)
#error "this processor has no instructions for SHA-256 that this file knows"
#endif
#include <immintrin.h>

#define HASH 32
#define PART 1024 /* bytes of a row that are one leaf of its own tree */
#define MOST_BLOCKS ((PART + 5 + 9 + 63) / 64)
#define MOST_PARTS 1024

enum { LEAF, NODE };

static const uint32_t K[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* A padded message of whole blocks. */
typedef struct {
  uint8_t bytes[64 * MOST_BLOCKS];
  int blocks;
} Message;

static void pad(Message *m, const uint8_t *head, int64_t head_bytes, const uint8_t *body, int64_t body_bytes) {
  const int64_t size = head_bytes + body_bytes;
  m->blocks = (int)((size + 9 + 63) / 64);
  memcpy(m->bytes, head, head_bytes);
  memcpy(m->bytes + head_bytes, body, body_bytes);
  memset(m->bytes + size, 0, 64 * m->blocks - size);
  m->bytes[size] = 0x80;
  for (int i = 0; i < 4; i++) m->bytes[64 * m->blocks - 1 - i] = (uint8_t)(8 * size >> 8 * i);
}

/* SHA-256 of n messages of equally many blocks side by side: one alone waits for itself most of the time. */
static inline __attribute__((always_inline)) void sha(const int n, const Message *const *messages, uint8_t *const *out) {
  const __m128i turn = _mm_set_epi64x(0x0c0d0e0f08090a0bULL, 0x0405060700010203ULL);
  __m128i abef[2], cdgh[2];
  for (int i = 0; i < n; i++) {
    abef[i] = _mm_set_epi64x(0x6a09e667bb67ae85ULL, 0x510e527f9b05688cULL);
    cdgh[i] = _mm_set_epi64x(0x3c6ef372a54ff53aULL, 0x1f83d9ab5be0cd19ULL);
  }
  for (int block = 0; block < messages[0]->blocks; block++) {
    __m128i w[2][4], before_abef[2], before_cdgh[2];
    for (int i = 0; i < n; i++) {
      before_abef[i] = abef[i];
      before_cdgh[i] = cdgh[i];
      for (int j = 0; j < 4; j++)
        w[i][j] = _mm_shuffle_epi8(
            _mm_loadu_si128((const __m128i *)(messages[i]->bytes + 64 * block + 16 * j)), turn);
    }
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) {
#pragma GCC unroll 2
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
    const __m128i abcd = _mm_unpackhi_epi64(cdgh[i], abef[i]), efgh = _mm_unpacklo_epi64(cdgh[i], abef[i]);
    const __m128i swap = _mm_set_epi64x(0x0001020304050607ULL, 0x08090a0b0c0d0e0fULL);
    _mm_storeu_si128((__m128i *)out[i], _mm_shuffle_epi8(abcd, swap));
    _mm_storeu_si128((__m128i *)(out[i] + 16), _mm_shuffle_epi8(efgh, swap));
  }
}

static void hash(const uint8_t *head, int64_t head_bytes, const uint8_t *body, int64_t body_bytes, uint8_t *out) {
  Message m;
  const Message *one = &m;
  pad(&m, head, head_bytes, body, body_bytes);
  sha(1, &one, &out);
}

static void parent(const uint8_t *left, const uint8_t *right, uint8_t *out) {
  uint8_t both[2 * HASH];
  const uint8_t tag = NODE;
  memcpy(both, left, HASH);
  memcpy(both + HASH, right, HASH);
  hash(&tag, 1, both, sizeof both, out);
}

/* The top of the tree over a row's parts; 0, or 1 when it has more than this knows. */
static int top_of_parts(const uint8_t *row, int64_t bytes, uint8_t *top) {
  uint8_t level[MOST_PARTS][HASH];
  const uint8_t tag = LEAF;
  int64_t width = (bytes + PART - 1) / PART, at = 0;
  if (width > MOST_PARTS) return 1;
  for (; (at + 2) * PART <= bytes; at += 2) {
    Message m[2];
    const Message *two[2] = {m, m + 1};
    uint8_t *out[2] = {level[at], level[at + 1]};
    for (int i = 0; i < 2; i++) pad(m + i, &tag, 1, row + (at + i) * PART, PART);
    sha(2, two, out);
  }
  for (; at < width; at++)
    hash(&tag, 1, row + at * PART, bytes - at * PART < PART ? bytes - at * PART : PART, level[at]);
  for (; width > 1; width = (width + 1) / 2) {
    for (int64_t i = 0; i < width / 2; i++) parent(level[2 * i], level[2 * i + 1], level[i]);
    if (width % 2) memcpy(level[width / 2], level[width - 1], HASH);
  }
  memcpy(top, level[0], HASH);
  return 0;
}

/* Adds `rows` rows of `row_bytes` to a tree that has `before` rows; `nodes` has room for all. 0, or 1 for rows too wide. */
int append_rows(uint8_t *nodes, int64_t before, const uint8_t *data, int64_t row_bytes, int64_t rows) {
  for (int64_t r = 0; r < rows; r++) {
    const uint64_t number = (uint64_t)(before + r);
    const uint8_t *row = data + r * row_bytes;
    uint8_t *node = nodes + HASH * (2 * number - (uint64_t)__builtin_popcountll(number));
    const uint8_t head[5] = {LEAF, (uint8_t)(number >> 24), (uint8_t)(number >> 16), (uint8_t)(number >> 8), (uint8_t)number};
    if (row_bytes <= PART) {
      hash(head, sizeof head, row, row_bytes, node);
    } else {
      uint8_t top[HASH];
      if (top_of_parts(row, row_bytes, top)) return 1;
      hash(head, sizeof head, top, HASH, node);
    }
    for (int64_t h = 0; number >> h & 1; h++, node += HASH)
      parent(node - HASH * (((int64_t)2 << h) - 1), node, node + HASH);
  }
  return 0;
}
