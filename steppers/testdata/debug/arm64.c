/* What is executed one instruction at a time on AArch64. */
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile long sink;

__attribute__((noinline)) static long leaf(long a) { return a * 3 + sink; }

__attribute__((noinline)) static long saves(long a, long b, long c, long d, long (*f)(long)) {
    long r = f(a) + f(b);
    r += f(c) * f(d);
    return r + a - b + c - d;
}

__attribute__((noinline)) static long variable(int n) {
    char *p = alloca(n);
    memset(p, n, n);
    return leaf(p[n / 2]) + saves(n, 2, 3, 4, leaf);
}

__attribute__((noinline)) static long recurse(int n) {
    if (n == 0) return variable(100);
    long r = recurse(n - 1);
    return r + leaf(n);
}

static int compare(const void *a, const void *b) {
    sink += leaf(1);
    return *(const int *)a - *(const int *)b;
}

int main(int argc, char **argv) {
    char buf[100];
    int v[5] = {3, 1, 4, 1, 5};
    sink = recurse(5);
    qsort(v, 5, sizeof v[0], compare);
    snprintf(buf, sizeof buf, "%d %g %s", v[0], argc / 3.0, argv[0]);
    sink = (long)strlen(buf);
    return 0;
}
