/* Keccak-256 as Ethereum has it: what is signed is hashed with it (signing.py). */

#include <stdint.h>
#include <string.h>

#define WORDS 25
#define RATE 136 /* bytes of the state that a block is added to */

static const uint64_t ROUND[24] = {
    0x0000000000000001, 0x0000000000008082, 0x800000000000808a, 0x8000000080008000,
    0x000000000000808b, 0x0000000080000001, 0x8000000080008081, 0x8000000000008009,
    0x000000000000008a, 0x0000000000000088, 0x0000000080008009, 0x000000008000000a,
    0x000000008000808b, 0x800000000000008b, 0x8000000000008089, 0x8000000000008003,
    0x8000000000008002, 0x8000000000000080, 0x000000000000800a, 0x800000008000000a,
    0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008};
/* How far the word turns that is moved next, and where to: both follow from the last. */
static const int TURN[24] = {1,  3,  6,  10, 15, 21, 28, 36, 45, 55, 2,  14,
                             27, 41, 56, 8,  25, 43, 62, 18, 39, 61, 20, 44};
static const int MOVED[24] = {10, 7,  11, 17, 18, 3,  5,  16, 8,  21, 24, 4,
                              15, 23, 19, 13, 12, 2,  20, 14, 22, 9,  6,  1};

static inline uint64_t turned(uint64_t word, int by) { return word << by | word >> (64 - by); }

static void permute(uint64_t a[WORDS]) {
  for (int round = 0; round < 24; round++) {
    uint64_t column[5];
#pragma GCC unroll 5
    for (int x = 0; x < 5; x++) column[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
#pragma GCC unroll 5
    for (int x = 0; x < 5; x++) {
      const uint64_t beside = column[(x + 4) % 5] ^ turned(column[(x + 1) % 5], 1);
#pragma GCC unroll 5
      for (int y = 0; y < WORDS; y += 5) a[x + y] ^= beside;
    }
    uint64_t carried = a[1];
#pragma GCC unroll 24
    for (int i = 0; i < 24; i++) {
      const uint64_t next = a[MOVED[i]];
      a[MOVED[i]] = turned(carried, TURN[i]);
      carried = next;
    }
#pragma GCC unroll 5
    for (int y = 0; y < WORDS; y += 5) {
      const uint64_t row[5] = {a[y], a[y + 1], a[y + 2], a[y + 3], a[y + 4]};
#pragma GCC unroll 5
      for (int x = 0; x < 5; x++) a[x + y] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5]);
    }
    a[0] ^= ROUND[round];
  }
}

static void absorb(uint64_t a[WORDS], const uint8_t block[RATE]) {
  for (int i = 0; i < RATE / 8; i++) {
    uint64_t word = 0;
    for (int b = 0; b < 8; b++) word |= (uint64_t)block[8 * i + b] << 8 * b;
    a[i] ^= word;
  }
  permute(a);
}

/* The 32 bytes that `bytes` bytes hash to. */
void keccak256(const uint8_t *data, int64_t bytes, uint8_t *out) {
  uint64_t a[WORDS] = {0};
  uint8_t last[RATE] = {0};
  for (; bytes >= RATE; data += RATE, bytes -= RATE) absorb(a, data);
  memcpy(last, data, bytes);
  last[bytes] = 0x01;
  last[RATE - 1] |= 0x80;
  absorb(a, last);
  for (int i = 0; i < 32; i++) out[i] = (uint8_t)(a[i / 8] >> 8 * (i % 8));
}
