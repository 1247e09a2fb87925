/* The same in C, for machines without C++ libraries to link with. */
#include <alloca.h>
#include <string.h>

__attribute__((noinline)) int variable(int n, const char *s) {
    char *b = alloca(n);
    memset(b, n, n);
    return b[n / 2] + (int)strlen(s);
}

__attribute__((noinline)) long early(long a, long b, long (*f)(long)) {
    if (a > b) return f(a) * f(b) + f(a + b);
    if (a == b) return f(a + 1) + b;
    for (long i = a; i < b; i++)
        if (f(i) == 7) return f(i + 1) - a;
    return f(b) + a * b;
}

__attribute__((noinline)) int large(int n, int (*f)(char *)) {
    char big[70000];
    memset(big, n, sizeof big);
    return f(big) + big[n];
}

__attribute__((noinline)) double floats(double *p, int n, double (*f)(double)) {
    double a = p[0], b = p[1], c = p[2], d = p[3];
    for (int i = 0; i < n; i++) a += f(b), b += f(c), c += f(d), d += f(a);
    return a + b + c + d;
}

static long twice(long v) { return v * 2; }
static int fifth(char *b) { return b[5]; }
static double half(double v) { return v / 2; }

int main(int argc, char **argv) {
    double d[4] = {1, 2, 3, 4};
    int r = variable(argc * 40, argv[0]) + (int)early(argc, 9, twice);
    return r + large(argc, fifth) + (int)floats(d, argc, half) == 12345;
}
