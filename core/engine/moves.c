/* Bytes from one place in memory to another, past the caches: who computes meanwhile keeps what it has there.

   An ordinary store first fetches the line that it overwrites, so an ordinary copy moves three bytes for each of its own and not two. */

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define LINE 64 /* bytes that memory is written by */

/* One line to where lines begin. */
static inline void stream_line(char *to, const char *from) {
#if defined(__AVX512F__)
  _mm512_stream_si512((void *)to, _mm512_loadu_si512(from));
#elif defined(__AVX__)
  for (int i = 0; i < LINE; i += 32) _mm256_stream_si256((__m256i *)(to + i), _mm256_loadu_si256((const __m256i *)(from + i)));
#elif defined(__SSE2__)
  for (int i = 0; i < LINE; i += 16) _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
#else
  memcpy(to, from, LINE);
#endif
}

/* `count` bytes that do not overlap where they go. They are there for every thread that learns of the return. */
void stream(char *to, const char *from, int64_t count) {
  const int64_t ragged = -(uintptr_t)to % LINE;
  int64_t at = ragged < count ? ragged : count;
  memcpy(to, from, (size_t)at);
  for (; at + LINE <= count; at += LINE) stream_line(to + at, from + at);
  memcpy(to + at, from + at, (size_t)(count - at));
#if defined(__SSE2__)
  _mm_sfence(); /* streamed lines wait for no other order */
#endif
}
