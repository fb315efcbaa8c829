/* Bytes from one place in memory to another, past the caches, which a step meanwhile needs.

   An ordinary store first fetches the line that it overwrites, so an ordinary copy moves three
   bytes for each of its own and not two. */

#include <stdint.h>
#include <string.h>

#include "lines.h"

/* `count` bytes that do not overlap where they go. They are there for every thread that learns of
   the return. */
void stream(char *to, const char *from, int64_t count) {
  const int64_t ragged = -(uintptr_t)to % LINE;
  int64_t at = ragged < count ? ragged : count;
  memcpy(to, from, (size_t)at);
  for (; at + LINE <= count; at += LINE) stream_line(to + at, from + at);
  memcpy(to + at, from + at, (size_t)(count - at));
  streamed();
}
