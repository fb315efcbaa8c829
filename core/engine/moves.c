/* Bytes from one place in memory to another, past the caches: nobody reads them soon, and what others compute on stays there.

   An ordinary store first fetches the line that it overwrites, so a copy of that kind moves three bytes for each of its own and not two. */

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#define LINE 64 /* bytes */
#endif

void move(char *to, const char *from, int64_t count) {
#ifdef LINE
  const int64_t ragged = -(intptr_t)to & (LINE - 1), before = ragged < count ? ragged : count;
  memcpy(to, from, (size_t)before);
  int64_t at = before;
  for (; at + LINE <= count; at += LINE) {
#if defined(__AVX512F__)
    _mm512_stream_si512((void *)(to + at), _mm512_loadu_si512(from + at));
#else
    for (int i = 0; i < LINE; i += 16)
      _mm_stream_si128((__m128i *)(to + at + i), _mm_loadu_si128((const __m128i *)(from + at + i)));
#endif
  }
  _mm_sfence();
  memcpy(to + at, from + at, (size_t)(count - at));
#else
  memcpy(to, from, (size_t)count);
#endif
}
