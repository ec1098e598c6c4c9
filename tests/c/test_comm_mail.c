/* Small messages through shared memory (comm_mail.c): matched by tag and size, in order, through a full ring.
 */
#include "../../src/dist/comm_mail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(e) assert_int_equal((e), EAS_OK)

typedef struct pair {
    void *memory;
    mail *a, *b; /* ranks 0 and 1 */
} pair;

static pair open_pair(void)
{
    pair p;
    size_t n = (mail_bytes(2) + 4095) / 4096 * 4096;
    p.memory = aligned_alloc(4096, n);
    assert_non_null(p.memory);
    memset(p.memory, 0, n);
    OK(mail_open(p.memory, 0, 2, &p.a));
    OK(mail_open(p.memory, 1, 2, &p.b));
    return p;
}

static void close_pair(pair *p)
{
    mail_free(p->a), mail_free(p->b);
    free(p->memory);
}

static void send_number(mail *m, int to, uint32_t tag, int64_t v)
{
    assert_true(mail_send(m, &v, sizeof v, to, tag));
}

static int64_t number(mail *m, int from, uint32_t tag)
{
    int64_t v = -1;
    assert_true(mail_receive(m, &v, sizeof v, from, tag));
    return v;
}

static void test_tags_and_sizes(void **state)
{
    (void)state;
    pair p = open_pair();
    int64_t v;
    int32_t small = 7;
    assert_false(mail_receive(p.b, &v, sizeof v, 0, 1));
    send_number(p.a, 1, 1, 10);
    send_number(p.a, 1, 2, 20);
    send_number(p.a, 1, 1, 11);
    assert_true(mail_send(p.a, &small, sizeof small, 1, 1));
    assert_true(mail_send(p.a, NULL, 0, 1, 3));
    send_number(p.b, 0, 1, 30); /* the other way is another box */
    small = 0;
    assert_true(mail_receive(p.b, &small, sizeof small, 0, 1));
    assert_int_equal(small, 7);
    assert_int_equal(number(p.b, 0, 2), 20);
    assert_int_equal(number(p.b, 0, 1), 10);
    assert_int_equal(number(p.b, 0, 1), 11);
    assert_true(mail_receive(p.b, NULL, 0, 0, 3));
    assert_false(mail_receive(p.b, &v, sizeof v, 0, 1));
    assert_int_equal(number(p.a, 1, 1), 30);
    send_number(p.a, 1, 9, 1); /* not received: freed with the mailbox */
    assert_false(mail_receive(p.b, &v, sizeof v, 0, 8));
    close_pair(&p);
}

/* A ring that is full of messages which nobody wants yet is emptied by whoever looks for another one. */
static void test_full_ring(void **state)
{
    (void)state;
    pair p = open_pair();
    int64_t v = 0, sent = 0;
    for (int round = 0; round < 3; round++) {
        while (mail_send(p.a, &sent, sizeof sent, 1, 5))
            sent++;
        assert_true(sent > 1);
        assert_false(mail_receive(p.b, &v, sizeof v, 0, 6));
    }
    send_number(p.a, 1, 6, 100);
    assert_int_equal(number(p.b, 0, 6), 100);
    for (int64_t i = 0; i < sent; i++)
        assert_int_equal(number(p.b, 0, 5), i);
    close_pair(&p);
}

enum { MESSAGES = 60000, TAGS = 3 };

static size_t size_of(int i) { return (size_t)(i * 37 % MAIL_MOST) + 1; }

static void *send_all(void *arg)
{
    mail *m = arg;
    char text[MAIL_MOST];
    for (int i = 0; i < MESSAGES; i++) {
        memset(text, i * 7, size_of(i));
        while (!mail_send(m, text, size_of(i), 1, (uint32_t)(i % TAGS)))
            sched_yield();
    }
    return NULL;
}

/* Groups of three messages are received last tag first, while the sender runs ahead. */
static void test_two_threads(void **state)
{
    (void)state;
    pair p = open_pair();
    pthread_t t;
    char text[MAIL_MOST];
    assert_int_equal(pthread_create(&t, NULL, send_all, p.a), 0);
    for (int i = 0; i < MESSAGES; i += TAGS)
        for (int k = TAGS - 1; k >= 0; k--) {
            size_t n = size_of(i + k);
            while (!mail_receive(p.b, text, n, 0, (uint32_t)k))
                sched_yield();
            char want = (char)((i + k) * 7);
            assert_true(text[0] == want && text[n / 2] == want && text[n - 1] == want);
        }
    pthread_join(t, NULL);
    close_pair(&p);
}

static void test_memory(void **state)
{
    (void)state;
    assert_true(mail_bytes(2) > 2 * MAIL_MOST && mail_bytes(2) < 1 << 20);
    assert_true(mail_bytes(16) > 0);
    assert_int_equal(mail_bytes(4096), 0); /* a job of so many ranks does without */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tags_and_sizes),
                                       cmocka_unit_test(test_full_ring), cmocka_unit_test(test_two_threads),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
