/* test_cpu_kernels.h: kernels in text form for test_cpu.c, one behaviour each. size: elements of a buffer or the value of a scalar. */
typedef struct kernel_text {
    const char *name, *text;
    int64_t size[8], grid[2];
    int64_t index_below; /* integer buffers hold indices below this */
} kernel_text;

static const kernel_text kernels[] = {
    {"add", "kernel k(buf<f32> x, buf<f32> y, buf<f32> r, i64 N) {\n"
            "  %5 = program_id 0 : i64\n  %6 = const 256 : i64\n  %7 = mul %5, %6 : i64\n  %8 = arange 0 : i64[256]\n  %9 = broadcast %7 : i64[256]\n"
            "  %10 = add %9, %8 : i64[256]\n  %11 = broadcast %4 : i64[256]\n  %12 = lt %10, %11 : bool[256]\n  %13 = const 0.0 : f32\n"
            "  %14 = broadcast %13 : f32[256]\n  %15 = load %1, %10, %12, %14 : f32[256]\n  %16 = load %2, %10, %12, %14 : f32[256]\n"
            "  %17 = add %15, %16 : f32[256]\n  store %3, %10, %17, %12\n}\n",
     {1000, 1000, 1000, 1000}, {4, 1}, 0},
};
