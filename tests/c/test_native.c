/* Functions of the host's from C: recorded as nodes, evaluated with what is around them, on every device
 * whose memory the host reaches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <eas.h>

static eas_node *tensor(eas_device *d, eas_dtype dt, int rank, const int64_t *shape, const void *data)
{
    size_t bytes = eas_dtype_size(dt);
    eas_buffer *buf;
    eas_node *n;
    for (int i = 0; i < rank; i++)
        bytes *= (size_t)shape[i];
    assert_int_equal(eas_buffer_new(d, bytes, &buf), EAS_OK);
    memcpy(eas_buffer_address(buf), data, bytes);
    assert_int_equal(eas_node_from_buffer(buf, dt, rank, shape, 0, NULL, &n), EAS_OK);
    eas_buffer_release(buf);
    return n;
}

static const void *data(eas_node *n, eas_device *d)
{
    int64_t offset, strides[16];
    assert_int_equal(eas_nodes_realize(1, &n, d, NULL), EAS_OK);
    return eas_buffer_address(eas_node_buffer(n, &offset, strides));
}

static void check_cholesky(eas_device *d)
{
    const double a[2][2][2] = {{{4, 2}, {2, 5}}, {{-1, 0}, {0, 1}}};
    eas_node *x = tensor(d, EAS_F64, 3, (int64_t[]){2, 2, 2}, a), *l;
    eas_node_type type = {EAS_F64, 3, (eas_dim[]){2, 2, 2}};
    assert_int_equal(eas_node_native("cholesky", 1, &x, 1, &type, 3, (eas_dim[]){1, 2, 2}, &l), EAS_OK);
    const double *v = data(l, d), want[4] = {2, 0, 1, 2};
    for (int i = 0; i < 4; i++) {
        assert_true(fabs(v[i] - want[i]) < 1e-14);
        assert_true(isnan(v[4 + i])); /* not positive definite */
    }
    eas_node_release(l);
    eas_node_release(x);
}

static void check_fft(eas_device *d)
{
    const float z[2][4] = {{1, 2, 3, 4}, {0, 0, 0, 0}}, want[2][4] = {{10, -2, -2, -2}, {0, 2, 0, -2}};
    eas_node *x[2], *y[2], *back[2];
    eas_node_type types[2] = {{EAS_F32, 1, (eas_dim[]){4}}, {EAS_F32, 1, (eas_dim[]){4}}};
    for (int i = 0; i < 2; i++)
        x[i] = tensor(d, EAS_F32, 1, (int64_t[]){4}, z[i]);
    assert_int_equal(eas_node_native("fft", 2, x, 2, types, 7, (eas_dim[]){0, 1, 4, 1, 0, 0, 0}, y), EAS_OK);
    assert_int_equal(eas_node_native("fft", 2, y, 2, types, 7, (eas_dim[]){0, 1, 4, 1, 0, 1, 1}, back),
                     EAS_OK);
    for (int i = 0; i < 2; i++) {
        const float *v = data(back[i], d), *w = data(y[i], d);
        for (int k = 0; k < 4; k++) {
            assert_true(fabsf(v[k] - z[i][k]) < 1e-6f);
            assert_true(fabsf(w[k] - want[i][k]) < 1e-6f);
        }
    }
    for (int i = 0; i < 2; i++) {
        eas_node_release(back[i]);
        eas_node_release(y[i]);
        eas_node_release(x[i]);
    }
}

static void check_results(eas_device *d)
{
    const double a[2][2] = {{1, 2}, {3, 4}};
    eas_node *x = tensor(d, EAS_F64, 2, (int64_t[]){2, 2}, a), *r[3];
    eas_node_type types[3] = {
        {EAS_F64, 2, (eas_dim[]){2, 2}}, {EAS_I64, 1, (eas_dim[]){2}}, {EAS_I64, 0, NULL}};
    assert_int_equal(eas_node_native("lu", 1, &x, 3, types, 4, (eas_dim[]){1, 1, 2, 2}, r), EAS_OK);
    const int64_t *perm = data(r[1], d), *sign = data(r[2], d);
    assert_int_equal(perm[0], 1);
    assert_int_equal(perm[1], 0);
    assert_int_equal(sign[0], -1);
    assert_true(((const double *)data(r[0], d))[0] == 3);
    for (int i = 0; i < 3; i++)
        eas_node_release(r[i]);
    eas_node_release(x);
}

static void devices(void **state)
{
    (void)state;
    for (int i = 0; i < eas_device_count(); i++) {
        eas_device *d = eas_device_at(i);
        if (eas_device_unavailable(d) || !eas_device_has_host_memory(d))
            continue;
        check_cholesky(d);
        check_fft(d);
        check_results(d);
    }
}

static void bad_calls(void **state)
{
    (void)state;
    eas_node *r;
    eas_node_type type = {EAS_F64, 0, NULL};
    assert_int_equal(eas_node_native("no such", 0, NULL, 1, &type, 0, NULL, &r), EAS_ERR_VALUE);
    assert_non_null(strstr(eas_error_message(), "no such"));
    assert_int_equal(eas_node_native(NULL, 0, NULL, 1, &type, 0, NULL, &r), EAS_ERR_HANDLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(devices), cmocka_unit_test(bad_calls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
