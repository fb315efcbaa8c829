/* How are several messages hashed by SHA-256 side by side, and pairs of a tree's nodes?

   A message has at most MOST_BYTES, which each file that includes this one defines. */

#include <stdint.h>
#include <string.h>

#if !defined(__SHA__) || !defined(__SSE4_1__)
#error "this processor has no instructions for SHA-256 that this file knows"
#endif
#include <immintrin.h>

#define HASH 32
#define MOST_BLOCKS ((MOST_BYTES + 9 + 63) / 64)
#define LANES 4 /* one message alone waits for itself most of the time */

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
