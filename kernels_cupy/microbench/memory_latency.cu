// One thread reads lines of memory, each when the one before is there, and notes how long each took.

extern "C" __global__ void read_lines(const char *data, const unsigned *lines, int count, unsigned *took) {
    unsigned seen = 0;
    for (int i = 0; i < count; i++) {
        const char *line = data + (unsigned long long)lines[i] * 128;
        unsigned begin, end, value;
        asm volatile("mov.u32 %0, %%clock;" : "=r"(begin) : "l"(line) : "memory");
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(line + (seen & 1)) : "memory");
        seen += value;
        asm volatile("mov.u32 %0, %%clock;" : "=r"(end) : "r"(seen) : "memory");
        took[i] = end - begin;
    }
    if (seen == 12345) took[0] = seen;
}
