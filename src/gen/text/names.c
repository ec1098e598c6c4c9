/* names.c: names of kernels and parameters that are legal in the target language.
 *
 * A name keeps its spelling unless it collides with a word of the language, with a function that the text
 * calls, or with a name that the text itself uses; then it gets underscores. Characters outside ASCII become
 * _uXX.
 */
#include "ctext.h"

#include <ctype.h>

/* Words of C, C++, MSL and OpenCL C, and the functions and macros that generated text uses; a space around
 * each. */
static const char words[] = " INFINITY NAN alignas alignof and and_eq as_type asm "
                            "auto barrier bfloat bitand bitor bool break case catch "
                            "ceil char char16_t char32_t class co_await co_return co_yield coherent compl "
                            "complex concept const const_cast constant "
                            "consteval constexpr constinit continue convert_float cos decltype default "
                            "delete device do double dynamic_cast "
                            "else enum event_t exp exp2 explicit export extern fabs false float float2 "
                            "float4 floor fma fmod for fragment "
                            "friend global goto half half4 if imaginary in inline int int2 kernel local log "
                            "log2 long main max mem_flags "
                            "memory_order_relaxed memory_order_seq_cst metal mutable namespace new noexcept "
                            "not not_eq nullptr operator or or_eq out pipe pow "
                            "private protected public read_only read_write register reinterpret_cast "
                            "requires restrict return rint sampler "
                            "short signed sin size_t sizeof sqrt static static_assert static_cast struct "
                            "switch tan tanh template this "
                            "thread thread_local thread_scope_device thread_scope_threadgroup threadgroup "
                            "threadgroup_barrier threadgroup_imageblock throw true trunc try "
                            "typedef typeid "
                            "typename uchar uint uint2 uint3 ulong union unsigned ushort using vertex "
                            "virtual void volatile wchar_t while "
                            "write_only xor xor_eq ";

/* The functions of OpenCL C: a kernel of such a name would be one more of them, found under another name. */
static const char functions[] =
    " abs abs_diff acos acosh acospi add_sat all any asin asinh asinpi async_work_group_copy atan atan2 "
    "atan2pi "
    "atanh atanpi bitselect cbrt clamp clz copysign cosh cospi cross degrees distance dot erf erfc exp10 "
    "expm1 "
    "fast_distance fast_length fast_normalize fdim fmax fmin fract frexp hadd hypot ilogb isequal isfinite "
    "isgreater isgreaterequal isinf isless islessequal islessgreater isnan isnormal isnotequal isordered "
    "isunordered ldexp length lgamma lgamma_r log10 log1p logb mad mad24 mad_hi mad_sat maxmag mem_fence min "
    "minmag "
    "mix modf mul24 mul_hi nan nextafter normalize popcount pown powr prefetch printf radians read_mem_fence "
    "remainder remquo rhadd rootn rotate round rsqrt select shuffle shuffle2 sign signbit sincos sinh sinpi "
    "smoothstep step sub_sat tanpi tgamma upsample vec_step wait_group_events work_group_barrier "
    "write_mem_fence ";

static bool starts(const char *s, const char *prefix) { return !strncmp(s, prefix, strlen(prefix)); }

/* v7, v7_1: the names of values */
static bool like_a_value(const char *s)
{
    if (*s++ != 'v' || !isdigit((unsigned char)*s))
        return false;
    while (isdigit((unsigned char)*s))
        s++;
    return *s == 0 || *s == '_';
}

static bool listed(const char *list, const char *s)
{
    size_t n = strlen(s);
    for (const char *p = list; (p = strstr(p, s)); p++)
        if (p[-1] == ' ' && p[n] == ' ')
            return true;
    return false;
}
static bool is_word(const char *s) { return listed(words, s); }

/* Names of whole families that generated text draws from. */
static bool in_family(const char *s)
{
    static const char *const prefixes[] = {"eas_",   "atomic_",      "atom_",    "packed_", "simdgroup",
                                           "simd_",  "make_filled_", "convert_", "as_",     "vload",
                                           "vstore", "get_",         "cl_",      "__"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (starts(s, prefixes[i]))
            return true;
    return like_a_value(s);
}

/* Names that the text of this kernel uses for its own. */
static bool is_ours(const ct *g, const char *s)
{
    for (int r = 0; r < g->max_rank; r++)
        if (!strcmp(s, ct_lane_var[r]))
            return true;
    if (g->has_dot && !strcmp(s, "k"))
        return true;
    for (int i = 0; i < CT_NIDENTS; i++)
        if (g->d->ident[i] && (g->idents >> i & 1) && !strcmp(s, g->d->ident[i]))
            return true;
    return false;
}

static const char *identifier(ct *g, const char *s)
{
    str out = {0};
    if (in_family(s) || isdigit((unsigned char)*s) || !*s)
        str_add(&out, "p_");
    for (; *s; s++)
        if (isalnum((unsigned char)*s) || *s == '_')
            str_put(&out, s, 1);
        else
            str_add(&out, "_u%02x", (unsigned char)*s);
    const char *r = out.oom ? NULL : arena_strdup(&g->mem, out.at);
    str_free(&out);
    return r;
}

static bool taken(const ct *g, const char *s, int nparams)
{
    if (is_word(s) || is_ours(g, s) || !strcmp(s, g->kernel_name))
        return true;
    for (int i = 1; i <= nparams; i++)
        if (!strcmp(s, g->name[i]))
            return true;
    return false;
}

/* Depends on nothing but the name, so that a runtime can look the function up. */
static const char *kernel_name(ct *g)
{
    const char *s = identifier(g, g->ir->name);
    while (s && (is_word(s) || listed(functions, s)))
        s = arena_printf(&g->mem, "%s_", s);
    return s;
}

bool ct_names(ct *g)
{
    if (!(g->kernel_name = kernel_name(g)))
        return false;
    for (int i = 0; i < g->ir->nparams; i++) {
        const char *s = identifier(g, g->ir->params[i].name);
        while (s && taken(g, s, i))
            s = arena_printf(&g->mem, "%s_", s);
        if (!s)
            return false;
        g->name[i + 1] = s;
    }
    return true;
}

eas_status gen_ctext_name(const eas_ir *ir, str *out)
{
    ct g = {.ir = ir};
    const char *s = kernel_name(&g);
    str_add(out, "%s", s ? s : "");
    arena_free(&g.mem);
    return s && !out->oom ? EAS_OK : base_fail_oom(strlen(ir->name));
}
