// Rows of scores on chip, 16 bytes at a time: each row is shared by the threads of a group.
#pragma once

#include "numbers.cuh"

// The keys that a row sees: from `begin` up to `end`.
struct Visible {
    int begin, end;

    // All keys that row `row` of a sequence of `rows` rows and `keys` keys sees: with `causal`, up to the diagonal, and with
    // a window only that many. Rows past the end see none.
    static __device__ __forceinline__ Visible keys_of(int row, int rows, int keys, bool causal, int window) {
        if (row >= rows) return {0, 0};
        int end = causal ? max(0, row + 1 + keys - rows) : keys;
        return {window ? max(0, end - window) : 0, end};
    }

    __device__ __forceinline__ bool all(int first, int count) const { return first >= begin && first + count <= end; }
};

// Sets what is not visible of the eight scores from key `first` on to -inf.
template <class Element>
__device__ __forceinline__ void hide(unsigned (&x)[4], int first, Visible visible) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float2 pair = unpack<Element>(x[e]);
        int key = first + 2 * e;
        x[e] = pack<Element>(visible.all(key, 1) ? pair.x : -CUDART_INF_F, visible.all(key + 1, 1) ? pair.y : -CUDART_INF_F);
    }
}

// Largest of eight scores.
template <class Element>
__device__ __forceinline__ float maximum_of(const unsigned (&x)[4]) {
    using Pair = typename PairOf<Element>::type;
    Pair pairs[4];
#pragma unroll
    for (int e = 0; e < 4; e++) pairs[e] = reinterpret_cast<const Pair &>(x[e]);
    Pair largest = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
    float2 m = unpack<Element>(reinterpret_cast<unsigned &>(largest));
    return fmaxf(m.x, m.y);
}

// Calls f(score) for each of eight scores.
template <class Element, class F>
__device__ __forceinline__ void for_each(const unsigned (&x)[4], F f) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float2 pair = unpack<Element>(x[e]);
        f(pair.x);
        f(pair.y);
    }
}

// f(score) of each of eight scores.
template <class Element, class F>
__device__ __forceinline__ uint4 map(const unsigned (&x)[4], F f) {
    unsigned y[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float2 pair = unpack<Element>(x[e]);
        y[e] = pack<Element>(f(pair.x), f(pair.y));
    }
    return make_uint4(y[0], y[1], y[2], y[3]);
}

// A whole row in registers: its aligned 16-byte chunks, of which chunk i * Group + rank belongs to thread `rank` of the
// group. Rows of any length start anywhere: a chunk that sticks out of the row is read and written by element.
template <class Element, int Group, int Items>
struct RegisterRow {
    static_assert(sizeof(Element) == 2, "eight elements to a chunk");
    unsigned x[Items][4];

    // Reads the row of `keys` scores at `row`; those it does not see are -inf.
    __device__ __forceinline__ void load(const Element *row, int keys, Visible visible, int rank) {
#pragma unroll
        for (int i = 0; i < Items; i++) {
            int first = first_of(row, i, rank);
            if (first >= 0 && first + 8 <= keys) {
                reinterpret_cast<uint4 &>(x[i]) = *reinterpret_cast<const uint4 *>(row + first);
            }
        }
        // Rare, and apart from the loads above, so that those are all in flight before the first is needed.
#pragma unroll
        for (int i = 0; i < Items; i++) {
            int first = first_of(row, i, rank);
            if (visible.all(first, 8)) continue;
            if (first < 0 || first + 8 > keys) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int k = first + 2 * e;
                    float a = k >= 0 && k < keys ? to_float(row[k]) : 0.0f;
                    x[i][e] = pack<Element>(a, k + 1 >= 0 && k + 1 < keys ? to_float(row[k + 1]) : 0.0f);
                }
            }
            hide<Element>(x[i], first, visible);
        }
    }

    // Writes f(score) for every score of the row.
    template <class F>
    __device__ __forceinline__ void store(Element *row, int keys, int rank, F f) const {
#pragma unroll
        for (int i = 0; i < Items; i++) {
            int first = first_of(row, i, rank);
            if (first >= keys) continue;
            uint4 y = map<Element>(x[i], f);
            if (first >= 0 && first + 8 <= keys) {
                *reinterpret_cast<uint4 *>(row + first) = y;
            } else {
                const Element *elements = reinterpret_cast<const Element *>(&y);
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    if (first + e >= 0 && first + e < keys) row[first + e] = elements[e];
                }
            }
        }
    }

  private:
    // Key at the start of an item: chunks begin at the 16-byte boundary at or before the row's start.
    static __device__ __forceinline__ int first_of(const Element *row, int item, int rank) {
        int lead = static_cast<int>(reinterpret_cast<unsigned long long>(row) % 16 / sizeof(Element));
        return 8 * (item * Group + rank) - lead;
    }
};
