/* How does a line of memory get past the caches? */

#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define LINE 64 /* bytes that memory is fetched and written by */

/* One line to where lines begin. An ordinary store first fetches what it overwrites. */
static inline void stream_line(char *to, const char *from) {
#if defined(__AVX512F__)
  _mm512_stream_si512((void *)to, _mm512_loadu_si512(from));
#elif defined(__AVX__)
  for (int i = 0; i < LINE; i += 32)
    _mm256_stream_si256((__m256i *)(to + i), _mm256_loadu_si256((const __m256i *)(from + i)));
#elif defined(__SSE2__)
  for (int i = 0; i < LINE; i += 16)
    _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
#else
  memcpy(to, from, LINE);
#endif
}

/* Lines that were streamed so far are there for every thread that learns of what comes after. They
   wait for no other order. */
static inline void streamed(void) {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}
