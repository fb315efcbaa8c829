/* The tree over the rows of a request: all hashes of new rows in one call (commit.py says which).

   Nodes lie in the order in which they come to be: a row's leaf, then what it completes, from the
   bottom up. So the subtree over 2^h rows is 2^(h+1) − 1 nodes on end, its top the last. */

#define PART 1024 /* bytes of a row that are one leaf of its own tree */
#define MOST_BYTES (PART + 5)
#define MOST_DEPTH 64 /* of a tree over parts: it has fewer than 2^64 */
#include "sha256.h"

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
