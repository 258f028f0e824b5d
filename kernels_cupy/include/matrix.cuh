// Tensor-core operations of one warp: ldmatrix, stmatrix, and mma.sync m16n8k16 with fp32 accumulation.
//
// Fragments are those of the PTX manual: lane l holds elements of rows l/4 and l/4 + 8, columns 2(l%4) and + 1.
#pragma once

#include "numbers.cuh"

// Four (two) 8x8 matrices of 16-bit elements; lanes 8i to 8i+7 give the addresses of the rows of matrix i.
__device__ __forceinline__ void load_matrices(unsigned (&x)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&x)[2], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(address)
                 : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&x)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&x)[2], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(address)
                 : "memory");
}

// Stores two 8x8 matrices, the inverse of load_matrices; lanes 0 to 15 give the addresses of their rows.
// Before sm_90, which has no stmatrix, each lane stores its pairs by itself, at addresses the owner lanes tell it.
__device__ __forceinline__ void store_matrices(unsigned address, unsigned first, unsigned second) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
                 : "memory");
#else
    int lane = threadIdx.x % 32;
    unsigned top = __shfl_sync(~0u, address, lane / 4), bottom = __shfl_sync(~0u, address, 8 + lane / 4);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(top + lane % 4 * 4), "r"(first) : "memory");
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(bottom + lane % 4 * 4), "r"(second) : "memory");
#endif
}

// d += a b: a is 16x16 (row-major fragment), b 16x8, d 16x8.
template <class Element>
__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void multiply<__half>(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                                        unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Fragments 2 * step and 2 * step + 1 of a result as the A operand of the next product, rounded to T.
template <class T, int Tiles>
__device__ __forceinline__ void as_operand(unsigned (&a)[4], const float (&d)[Tiles][4], int step) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float(&x)[4] = d[2 * step + half];
        a[2 * half] = pack<T>(x[0], x[1]);
        a[2 * half + 1] = pack<T>(x[2], x[3]);
    }
}
