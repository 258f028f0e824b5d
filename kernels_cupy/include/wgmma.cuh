// The wgmma instructions of Hopper (sm_90a) that warpgroup.cuh uses, one function per shape: d += a b, asynchronously.
//
// d[j] is the fragment of columns 8j to 8j + 7. TransA, TransB: whether the operand's rows or columns, and not k, lie next
// to each other in shared memory.
#pragma once

#include "numbers.cuh"

template <class Element>
constexpr bool is_half = false;
template <>
constexpr bool is_half<__half> = true;

// The sums as operands of the instruction: their numbers in its text, and the registers.
#define GPUSIM_NUMBERS_16 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define GPUSIM_NUMBERS_32 \
    GPUSIM_NUMBERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GPUSIM_NUMBERS_64                                                                                \
    GPUSIM_NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GPUSIM_NUMBERS_96                                                                                \
    GPUSIM_NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define GPUSIM_NUMBERS_128                                                                                           \
    GPUSIM_NUMBERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define GPUSIM_FRAGMENT(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define GPUSIM_SUMS_16(j) GPUSIM_FRAGMENT(j), GPUSIM_FRAGMENT(j + 1), GPUSIM_FRAGMENT(j + 2), GPUSIM_FRAGMENT(j + 3)
#define GPUSIM_SUMS_32(j) GPUSIM_SUMS_16(j), GPUSIM_SUMS_16(j + 4)
#define GPUSIM_SUMS_64(j) GPUSIM_SUMS_32(j), GPUSIM_SUMS_32(j + 8)
#define GPUSIM_SUMS_96(j) GPUSIM_SUMS_64(j), GPUSIM_SUMS_32(j + 16)
#define GPUSIM_SUMS_128(j) GPUSIM_SUMS_64(j), GPUSIM_SUMS_64(j + 16)

// wgmma of one shape in Element's format. N: columns; COUNT: sums per thread, N / 2; REST: the instruction's text after the
// sums; the inputs follow.
#define GPUSIM_WGMMA_OF(TYPE, N, COUNT, REST, ...)                                                              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" GPUSIM_NUMBERS_##COUNT "}, " REST \
                 : GPUSIM_SUMS_##COUNT(0)                                                                       \
                 : __VA_ARGS__)
#define GPUSIM_WGMMA(N, COUNT, REST, ...)                                                   \
    if constexpr (is_half<Element>) GPUSIM_WGMMA_OF("f16", N, COUNT, REST, __VA_ARGS__); \
    else GPUSIM_WGMMA_OF("bf16", N, COUNT, REST, __VA_ARGS__)

template <int TransA, int TransB, class Element>
__device__ __forceinline__ void wgmma(float (&d)[4][4], unsigned long long a, unsigned long long b, Element) {
    GPUSIM_WGMMA("32", 16, "%16, %17, 1, 1, 1, %18, %19;", "l"(a), "l"(b), "n"(TransA), "n"(TransB));
}

template <int TransA, int TransB, class Element>
__device__ __forceinline__ void wgmma(float (&d)[8][4], unsigned long long a, unsigned long long b, Element) {
    GPUSIM_WGMMA("64", 32, "%32, %33, 1, 1, 1, %34, %35;", "l"(a), "l"(b), "n"(TransA), "n"(TransB));
}

template <int TransB, class Element>
__device__ __forceinline__ void wgmma(float (&d)[8][4], const unsigned (&a)[4], unsigned long long b, Element) {
    GPUSIM_WGMMA("64", 32, "{%32, %33, %34, %35}, %36, 1, 1, 1, %37;", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
                 "l"(b), "n"(TransB));
}

template <int TransA, int TransB, class Element>
__device__ __forceinline__ void wgmma(float (&d)[16][4], unsigned long long a, unsigned long long b, Element) {
    GPUSIM_WGMMA("128", 64, "%64, %65, 1, 1, 1, %66, %67;", "l"(a), "l"(b), "n"(TransA), "n"(TransB));
}

template <int TransB, class Element>
__device__ __forceinline__ void wgmma(float (&d)[16][4], const unsigned (&a)[4], unsigned long long b, Element) {
    GPUSIM_WGMMA("128", 64, "{%64, %65, %66, %67}, %68, 1, 1, 1, %69;", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
                 "l"(b), "n"(TransB));
}

template <int TransA, int TransB, class Element>
__device__ __forceinline__ void wgmma(float (&d)[24][4], unsigned long long a, unsigned long long b, Element) {
    GPUSIM_WGMMA("192", 96, "%96, %97, 1, 1, 1, %98, %99;", "l"(a), "l"(b), "n"(TransA), "n"(TransB));
}

template <int TransA, int TransB, class Element>
__device__ __forceinline__ void wgmma(float (&d)[32][4], unsigned long long a, unsigned long long b, Element) {
    GPUSIM_WGMMA("256", 128, "%128, %129, 1, 1, 1, %130, %131;", "l"(a), "l"(b), "n"(TransA), "n"(TransB));
}

#undef GPUSIM_NUMBERS_16
#undef GPUSIM_NUMBERS_32
#undef GPUSIM_NUMBERS_64
#undef GPUSIM_NUMBERS_96
#undef GPUSIM_NUMBERS_128
#undef GPUSIM_FRAGMENT
#undef GPUSIM_SUMS_16
#undef GPUSIM_SUMS_32
#undef GPUSIM_SUMS_64
#undef GPUSIM_SUMS_96
#undef GPUSIM_SUMS_128
#undef GPUSIM_WGMMA_OF
#undef GPUSIM_WGMMA
