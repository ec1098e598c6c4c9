/* Operations on tensors in words, for the tests of the graph.
 *
 * A tensor reads "f32 2|3,n": dtype, batch dims, logical dims; "f32 ." has no dims. Numbers: "#2" weak int,
 * "#2.5" weak float. Attributes: numbers (floats with a point or an exponent), _ for None, [1,2,n] for lists,
 * none for a missing list, names of dtypes; sizes that are symbols have one letter.
 */
#ifndef GRAPH_WORDS_H
#define GRAPH_WORDS_H

#include <ctype.h>
#include <stdio.h>
#include "../../src/graph/graph.h"

typedef struct row {
    const char *op, *in, *attr, *out;
} row;

/* ---- words to nodes ---- */

static inline eas_dim parse_dim(const char **p)
{
    char name[32];
    int n = 0;
    if (**p == '_') {
        ++*p;
        return DIM_NONE;
    }
    if (isdigit((unsigned char)**p) || **p == '-')
        return strtoll(*p, (char **)p, 10);
    while (isalnum((unsigned char)**p))
        name[n++] = *(*p)++;
    name[n] = 0;
    eas_dim d;
    assert_int_equal(eas_dim_symbol(name, &d), EAS_OK);
    return d;
}

static inline eas_dtype parse_dtype(const char **p)
{
    char name[8];
    int n = 0;
    eas_dtype dt;
    while (isalnum((unsigned char)**p) && n < 7)
        name[n++] = *(*p)++;
    name[n] = 0;
    if (!eas_dtype_parse(name, &dt))
        fail_msg("no dtype '%s'", name);
    return dt;
}

static inline eas_node *parse_number(const char **p)
{
    eas_node *x;
    char *end, *end2;
    long long i = strtoll(*p, &end, 10);
    double f = strtod(*p, &end2);
    eas_status st =
        end2 > end ? eas_node_number(EAS_F32, 1, 0, f, &x) : eas_node_number(EAS_I64, 1, i, 0, &x);
    assert_int_equal(st, EAS_OK);
    *p = end2;
    return x;
}

/* "f32 2|3,4"; the rank */
static inline int parse_type(const char **p, eas_dtype *dt, eas_dim *shape, int *batch_dims)
{
    int rank = 0;
    *batch_dims = 0;
    *dt = parse_dtype(p);
    ++*p;
    while (**p && !isspace((unsigned char)**p) && **p != ':') {
        if (**p == '.' || **p == ',')
            ++*p;
        else if (**p == '|') {
            *batch_dims = rank;
            ++*p;
        } else
            shape[rank++] = parse_dim(p);
    }
    return rank;
}

static inline int64_t parse_word(const char **p)
{
    eas_dtype dt;
    char name[8] = {0};
    /* None, or a size of one letter */
    if (**p == '_' || (isalpha((unsigned char)**p) && !isalnum((unsigned char)(*p)[1])))
        return parse_dim(p);
    if (isalpha((unsigned char)**p)) {
        for (int n = 0; isalnum((unsigned char)**p) && n < 7; n++)
            name[n] = *(*p)++;
        if (!eas_dtype_parse(name, &dt))
            fail_msg("no dtype '%s'", name);
        return (int64_t)dt;
    }
    char *end, *end2;
    int64_t i = strtoll(*p, &end, 10), bits;
    double f = strtod(*p, &end2);
    memcpy(&bits, &f, sizeof bits);
    *p = end2;
    return end2 > end ? bits : i;
}

static inline int parse_attr(const char *p, int64_t *out)
{
    int n = 0;
    while (*p) {
        if (!strncmp(p, "none", 4)) {
            out[n++] = -1;
            p += 4;
        } else if (*p == '[') {
            int at = n++;
            for (p++; *p != ']';)
                if (*p == ',')
                    p++;
                else
                    out[n++] = parse_dim(&p);
            out[at] = n - at - 1;
            p++;
        } else
            out[n++] = parse_word(&p);
        while (isspace((unsigned char)*p))
            p++;
    }
    return n;
}

/* ---- nodes to words ---- */

static inline void describe(const eas_node *n, char *buf, size_t room)
{
    str s = {0};
    str_add(&s, "%s ", eas_dtype_name((eas_dtype)n->dtype));
    for (int i = 0; i < n->rank; i++) {
        str_add(&s, "%s", i == 0 ? "" : i == n->batch_dims ? "" : ",");
        dim_add_text(&s, node_shape(n)[i]);
        if (i + 1 == n->batch_dims)
            str_add(&s, "|");
    }
    if (n->rank == 0)
        str_add(&s, ".");
    snprintf(buf, room, "%s", s.at);
    str_free(&s);
}

#endif
