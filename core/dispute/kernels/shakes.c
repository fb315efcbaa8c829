/* By which factors are an operator's values shaken? core/dispute/trace/shake.py says which. */

#include <stdlib.h>

#define MOST_BYTES 18
#include "../../protocol/sha256.h"

#define SIGNS (8 * HASH) /* of one hash */
#define UNIT 0x1p-24

/* Where the fields of what is hashed begin; each is written with its highest byte first. */
enum { WIDE_AT = 1, ROW_AT = 6, SEGMENT_AT = 10, BLOCK_AT = 14 };

static void write(uint8_t *to, const int bytes, const int64_t number) {
  for (int b = 0; b < bytes; b++) to[b] = (uint8_t)(number >> 8 * (bytes - 1 - b));
}

/* Adds ±step to each of `length` numbers, `wide` neighbours alike. */
static void add_signs(int32_t *total, const int64_t length, const uint8_t place[MOST_BYTES],
                      const int64_t wide, const int32_t step) {
  const int64_t groups = (length + wide - 1) / wide;
  for (int64_t group = 0; group < groups;) {
    Message messages[LANES];
    uint8_t hashes[LANES][HASH];
    const int64_t blocks = (groups - group + SIGNS - 1) / SIGNS;
    const int n = blocks < LANES ? (int)blocks : LANES;
    for (int i = 0; i < n; i++) {
      memcpy(messages[i].bytes, place, MOST_BYTES);
      messages[i].size = MOST_BYTES;
      write(messages[i].bytes + WIDE_AT, 2, wide);
      write(messages[i].bytes + BLOCK_AT, 4, group / SIGNS + i);
    }
    sha(n, messages, hashes);
    for (int i = 0; i < n; i++)
      for (int j = 0; j < SIGNS && group < groups; j++, group++) {
        const int32_t sign = 2 * (hashes[i][HASH - 1 - j / 8] >> j % 8 & 1) - 1;
        const int64_t end = (group + 1) * wide < length ? (group + 1) * wide : length;
        for (int64_t at = group * wide; at < end; at++) total[at] += sign * step;
      }
  }
}

/* Shakes values [rows][segments][length] from row number `first` on, in place. `place` holds seed,
   section and operator; neighbours that share a sign, and what it counts in 2^-24, are those of
   `levels` levels. 0, or 1 when there was no memory. */
int shake(double *values, int64_t first, int64_t rows, int64_t segments, int64_t length,
          const uint8_t *place, const int64_t *wides, const int64_t *steps, int64_t levels) {
  uint8_t here[MOST_BYTES];
  int32_t *total = malloc(sizeof(int32_t) * (size_t)length);
  if (!total) return 1;
  memcpy(here, place, MOST_BYTES);
  for (int64_t row = first; row < first + rows; row++)
    for (int64_t segment = 0; segment < segments; segment++, values += length) {
      write(here + ROW_AT, 4, row);
      write(here + SEGMENT_AT, 4, segment);
      memset(total, 0, sizeof(int32_t) * (size_t)length);
      for (int64_t i = 0; i < levels; i++)
        add_signs(total, length, here, wides[i], (int32_t)steps[i]);
      for (int64_t i = 0; i < length; i++) values[i] *= 1 + total[i] * UNIT;
    }
  free(total);
  return 0;
}
