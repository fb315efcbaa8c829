/* Which hashes do a trace's chunks have, and the nodes above them?

   core/dispute/trace/chunks.py says what a leaf is and what a node. */

#define CHUNK 64
#define MOST_BYTES (1 + CHUNK)
#include "../../protocol/sha256.h"

/* Messages of one tag and size, waiting until they fill all lanes. */
typedef struct {
  Message messages[LANES];
  uint8_t *into[LANES];
  int count;
} Waiting;

static void hash(Waiting *w) {
  uint8_t out[LANES][HASH];
  sha(w->count, w->messages, out);
  for (int i = 0; i < w->count; i++) memcpy(w->into[i], out[i], HASH);
  w->count = 0;
}

static void wait_for(Waiting *w, const uint8_t *chunk, const int64_t bytes, uint8_t *into) {
  begin(w->messages + w->count, LEAF);
  add(w->messages + w->count, chunk, bytes);
  w->into[w->count++] = into;
  if (w->count == LANES) hash(w);
}

/* Hashes of the chunks of `lines` segments of `bytes` each, whose last chunk may be shorter. */
void leaves(const uint8_t *data, int64_t lines, int64_t bytes, uint8_t (*out)[HASH]) {
  Waiting full = {.count = 0}, last = {.count = 0};
  for (int64_t line = 0; line < lines; line++, data += bytes)
    for (int64_t at = 0; at < bytes; at += CHUNK, out++)
      if (bytes - at >= CHUNK)
        wait_for(&full, data + at, CHUNK, *out);
      else
        wait_for(&last, data + at, bytes - at, *out);
  hash(&full);
  hash(&last);
}

/* The nodes `levels` above `count` nodes, in place of the first of them; an unpaired one moves up
   as it is. */
void parents_above(uint8_t (*nodes)[HASH], int64_t count, int64_t levels) {
  for (; levels; levels--) {
    const int64_t pairs = count / 2;
    for (int64_t i = 0; i < pairs; i += LANES) {
      const int n = pairs - i < LANES ? (int)(pairs - i) : LANES;
      uint8_t left[LANES][HASH], right[LANES][HASH];
      for (int j = 0; j < n; j++) {
        memcpy(left[j], nodes[2 * (i + j)], HASH);
        memcpy(right[j], nodes[2 * (i + j) + 1], HASH);
      }
      parents(n, (const uint8_t(*)[HASH])left, (const uint8_t(*)[HASH])right, nodes + i);
    }
    if (count % 2) memmove(nodes[pairs], nodes[count - 1], HASH);
    count = pairs + count % 2;
  }
}
