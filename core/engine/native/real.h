/* What our kernels compute with: float, and double where they are compiled with REAL_BITS of 64,
   for auditors. */

#ifndef REAL_BITS
#define REAL_BITS 32
#endif

#if REAL_BITS == 64
#define REAL double
#define WHOLE int64_t /* as wide as a REAL */
#define LEAST_WHOLE INT64_MIN
#define ROOT sqrt
#else
#define REAL float
#define WHOLE int32_t
#define LEAST_WHOLE INT32_MIN
#define ROOT sqrtf
#endif
