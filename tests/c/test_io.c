/* Tensors in files, from C: safetensors, npy, npz there and back, slices, what is refused; quantized
 * matrices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "eas.h"

static char folder[] = "/tmp/eas-io-XXXXXX", path[4096];

static const char *file(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void ok(eas_status st)
{
    if (st != EAS_OK)
        fail_msg("%s: %s", eas_status_name(st), eas_error_message());
}

static eas_node *tensor(eas_dtype dt, int rank, const int64_t *shape, const void *data)
{
    eas_device *cpu;
    eas_buffer *buf;
    eas_node *n;
    size_t bytes = eas_dtype_size(dt);
    for (int i = 0; i < rank; i++)
        bytes *= (size_t)shape[i];
    ok(eas_device_get("cpu", &cpu));
    ok(eas_buffer_new(cpu, bytes, &buf));
    memcpy(eas_buffer_host(buf), data, bytes);
    ok(eas_node_from_buffer(buf, dt, rank, shape, 0, NULL, &n));
    eas_buffer_release(buf);
    return n;
}

static const void *data_of(eas_node *n)
{
    int64_t offset, strides[EAS_MAX_RANK];
    ok(eas_nodes_realize(1, &n, NULL, NULL));
    eas_buffer *buf = eas_node_buffer(n, &offset, strides);
    return (char *)eas_buffer_host(buf) + offset * (int64_t)eas_dtype_size(eas_node_dtype(n));
}

static void there_and_back(void **state)
{
    (void)state;
    static const char *const names[] = {"a.npz", "b.safetensors"};
    float f[6] = {1, 2, 3, 4, 5, 6};
    int64_t i[2] = {-1, INT64_MAX};
    eas_node *nodes[2] = {tensor(EAS_F32, 2, (int64_t[]){2, 3}, f), tensor(EAS_I64, 1, (int64_t[]){2}, i)};
    for (int k = 0; k < 4; k++) {
        eas_weights *w;
        eas_node *n, *part;
        char *text;
        int safe = k >= 2;
        ok(eas_weights_save(file(names[safe]), 2, (const char *[]){"x", "y/\"z\""}, nodes, NULL, safe,
                            (const char *[]){"key", "value"}, k == 1, NULL));
        ok(eas_weights_open(path, &w));
        assert_int_equal(eas_weights_count(w), 2);
        assert_string_equal(eas_weights_format(w), safe ? "safetensors" : "npz");
        int at = eas_weights_find(w, "x");
        eas_weight e = eas_weights_at(w, at);
        assert_string_equal(e.name, "x");
        assert_int_equal(e.rank, 2);
        assert_int_equal(e.shape[1], 3);
        ok(eas_weights_node(w, at, &n));
        assert_memory_equal(data_of(n), f, sizeof f);
        ok(eas_weights_slice(w, at, (int64_t[]){1, 0}, (int64_t[]){1, 3}, &part));
        assert_memory_equal(data_of(part), f + 3, 12);
        assert_int_equal(eas_weights_slice(w, at, (int64_t[]){1, 0}, (int64_t[]){2, 3}, &part),
                         EAS_ERR_INDEX);
        assert_int_equal(eas_weights_find(w, "none"), -1);
        assert_int_equal(eas_weights_node(w, 2, &part), EAS_ERR_INDEX);
        if (safe) {
            assert_int_equal(eas_weights_meta_count(w), 1);
            assert_string_equal(eas_weights_meta_key(w, 0), "key");
            ok(eas_weights_meta(w, 0, &text));
            assert_string_equal(text, "value");
            eas_memory_free(text);
        }
        eas_weights_release(w); /* the tensors keep the file */
        assert_memory_equal(data_of(n), f, sizeof f);
        eas_node_release(n);
        eas_node_release(part);
        unlink(path);
    }
    eas_node_release(nodes[0]);
    eas_node_release(nodes[1]);
}

static eas_status parsed(const char *header, size_t data)
{
    size_t n = strlen(header);
    uint64_t len = n;
    char *all = calloc(8 + n + data, 1);
    eas_weights *w = NULL;
    memcpy(all, &len, 8);
    memcpy(all + 8, header, n);
    eas_status st = eas_weights_parse(all, 8 + n + data, "m.safetensors", &w);
    if (st == EAS_OK)
        eas_weights_release(w);
    free(all);
    return st;
}

static void refuses(void **state)
{
    (void)state;
    ok(parsed("{}", 0));
    ok(parsed("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}   ", 8));
    assert_int_equal(parsed("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9),
                     EAS_ERR_VALUE);
    assert_int_equal(parsed("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7),
                     EAS_ERR_VALUE);
    assert_int_equal(
        parsed("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2,4611686018427387904],\"data_offsets\":[0,8]}}", 8),
        EAS_ERR_VALUE);
    assert_int_equal(
        parsed(
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
            8),
        EAS_ERR_VALUE);
    assert_non_null(strstr(eas_error_message(), "overlaps"));
    assert_int_equal(parsed(" {}", 0), EAS_ERR_VALUE);
    assert_int_equal(eas_weights_open(file("none.safetensors"), &(eas_weights *){NULL}), EAS_ERR_IO);
    assert_int_equal(eas_weights_save(file("none.what"), 0, NULL, NULL, NULL, 0, NULL, 0, NULL),
                     EAS_ERR_VALUE);
}

/* Products with a quantized matrix are products with what it dequantises to, by one row and by several. */
static void quantized(void **state)
{
    (void)state;
    enum { K = 70, N = 40, M = 3 };
    float w[K * N], x[M * K];
    for (int i = 0; i < K * N; i++)
        w[i] = (float)sin(i * 0.37) * (1 + (float)(i % 7));
    for (int i = 0; i < M * K; i++)
        x[i] = (float)cos(i * 0.11);
    eas_node *wn = tensor(EAS_F32, 2, (int64_t[]){K, N}, w);
    for (int kind = EAS_QUANT_INT8; kind <= EAS_QUANT_NF4; kind++)
        for (int rows = 1; rows <= M; rows += M - 1) {
            eas_quantized q;
            eas_node *d, *y, *xn = tensor(EAS_F32, 2, (int64_t[]){rows, K}, x);
            ok(eas_node_quantize(wn, (eas_quant)kind, &q));
            ok(eas_quantized_dequantize(&q, EAS_F32, &d));
            ok(eas_quantized_matmul(xn, &q, &y));
            const float *dense = data_of(d), *got = data_of(y);
            for (int i = 0; i < K * N; i++)
                assert_true(fabsf(dense[i] - w[i]) < (kind == EAS_QUANT_INT8 ? 0.04f : 1.3f));
            for (int r = 0; r < rows; r++)
                for (int n = 0; n < N; n++) {
                    double want = 0;
                    for (int k = 0; k < K; k++)
                        want += (double)x[r * K + k] * dense[k * N + n];
                    assert_true(fabs(got[r * N + n] - want) < 1e-3);
                }
            eas_node *all[] = {d, y, xn, q.data, q.scales, q.offsets};
            for (int i = 0; i < 6; i++)
                eas_node_release(all[i]);
        }
    eas_quantized q;
    assert_int_equal(eas_node_quantize(wn, (eas_quant)9, &q), EAS_ERR_VALUE);
    ok(eas_node_quantize(wn, EAS_QUANT_INT4, &q));
    assert_int_equal(eas_quantized_matmul(wn, &q, &(eas_node *){NULL}), EAS_ERR_VALUE);
    assert_non_null(strstr(eas_error_message(), "shapes (70, 40) and (70, 40) do not multiply"));
    eas_node_release(q.data);
    eas_node_release(q.scales);
    eas_node_release(wn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(there_and_back), cmocka_unit_test(refuses),
                                       cmocka_unit_test(quantized)};
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
