// Code with many kinds of frame: for comparisons of its call frame information.
#include <alloca.h>
#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

// A variable frame: the CFA hangs on the frame pointer.
extern "C" __attribute__((noinline)) int variable(int n, const char *s) {
    char *b = static_cast<char *>(alloca(n));
    memset(b, n, n);
    return b[n / 2] + static_cast<int>(strlen(s));
}

// A realigned stack: the CFA is in memory.
extern "C" __attribute__((noinline)) double realigned(const double *p, int n, char *out) {
    alignas(64) double acc[16] = {};
    for (int i = 0; i < n; i++) acc[i % 16] += p[i] * p[n - 1 - i];
    double sum = 0;
    for (double a : acc) sum += a;
    snprintf(out, 32, "%p %g", static_cast<void *>(acc), sum);
    return sum;
}

// Early returns: states are remembered and restored.
extern "C" __attribute__((noinline)) long early(long a, long b, long (*f)(long)) {
    if (a > b) return f(a) * f(b) + f(a + b);
    if (a == b) return f(a + 1) + b;
    for (long i = a; i < b; i++)
        if (f(i) == 7) return f(i + 1) - a;
    return f(b) + a * b;
}

// A frame too large for small offsets.
extern "C" __attribute__((noinline)) int large(int n, int (*f)(char *)) {
    char big[70000];
    memset(big, n, sizeof big);
    return f(big) + big[n];
}

struct Thing {
    std::map<std::string, std::vector<int>> m;
    virtual ~Thing() {}
    virtual int work(int n) {
        if (n < 0) throw std::runtime_error("negative");
        m["x" + std::to_string(n)].push_back(n);
        int sum = 0;
        for (auto &[k, v] : m)
            for (int i : v) sum += i + static_cast<int>(k.size());
        return sum;
    }
};

int main(int argc, char **argv) {
    Thing t;
    int r = 0;
    try {
        for (int i = 0; i < argc + 3; i++) r += t.work(i);
        r += t.work(argc > 100 ? -1 : 1);
    } catch (const std::exception &e) {
        puts(e.what());
    }
    double d[3] = {1, 2, 3};
    char out[32];
    r += variable(argc * 40, argv[0]) + static_cast<int>(realigned(d, 3, out));
    r += static_cast<int>(early(argc, 9, [](long v) { return v * 2; }));
    r += large(argc, [](char *b) { return static_cast<int>(b[5]); });
    return r == 12345;
}
