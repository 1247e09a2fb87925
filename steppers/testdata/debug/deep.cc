// A deep stack of many kinds of frame, 30 calls of step and what lies between,
// that stops at a breakpoint instruction. The argument says how it gets there.
#include <alloca.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <pthread.h>
#include <string>
#include <ucontext.h>
#include <vector>

static const char *mode;
static volatile int sink;

__attribute__((noinline)) static void stop() {
    asm volatile("int3");
    sink++;
}

static void handler(int) { stop(); sink++; }

static void on_alternate_stack(int sig) {
    // Above or below the thread's stack, as malloc has it.
    static char *memory = static_cast<char *>(malloc(1 << 18));
    stack_t st{};
    st.ss_sp = memory;
    st.ss_size = 1 << 18;
    sigaltstack(&st, nullptr);
    struct sigaction sa{};
    sa.sa_handler = handler;
    sa.sa_flags = SA_ONSTACK;
    sigaction(sig, &sa, nullptr);
}

__attribute__((noinline)) static int leaf(int n) {
    if (!strcmp(mode, "plain")) {
        stop();
    } else if (!strcmp(mode, "signal")) {
        signal(SIGUSR1, handler);
        raise(SIGUSR1);
    } else if (!strcmp(mode, "altstack")) {
        on_alternate_stack(SIGUSR1);
        raise(SIGUSR1);
    } else if (!strcmp(mode, "segv")) {
        on_alternate_stack(SIGSEGV);
        *reinterpret_cast<volatile int *>(8) = n;
    } else if (!strcmp(mode, "step")) {
        stop();
        // What is executed one instruction at a time from here on.
        char buf[64];
        std::vector<std::string> v;
        for (int i = 0; i < 2; i++) {
            snprintf(buf, sizeof buf, "%d %g %s", i * n, i / 3.0, mode);
            v.push_back(buf);
        }
        timespec ts;
        clock_gettime(CLOCK_MONOTONIC_COARSE, &ts); // the other reads anew at each tick, which comes before it is done
        int (*compare)(const void *, const void *) = [](const void *a, const void *b) {
            return strcmp(static_cast<const char *>(a), static_cast<const char *>(b));
        };
        char words[6][8] = {"delta", "alpha", "echo", "bravo", "foxtrot", "charlie"};
        qsort(words, 6, 8, compare);
        signal(SIGUSR1, [](int) { sink++; });
        raise(SIGUSR1);
        try {
            sink = std::stoi(v[0].c_str() + 1 + sink % 2);
            throw v.size();
        } catch (unsigned long n) {
            sink = static_cast<int>(n);
        } catch (...) {
            sink = 2;
        }
        stop();
    }
    return n + 1;
}

__attribute__((noinline)) static int step(int n);

__attribute__((noinline)) static int variable(int n) {
    char *b = static_cast<char *>(alloca(n * 50 + 10));
    memset(b, n, n * 50 + 10);
    return step(n - 1) + b[n];
}

__attribute__((noinline)) static int realigned(int n) {
    alignas(64) volatile double d[8] = {1, 2, 3};
    d[n % 8] = n;
    return step(n - 1) + static_cast<int>(d[1]);
}

__attribute__((noinline)) static int large(int n) {
    volatile char b[40000];
    b[n] = 1;
    return step(n - 1) + b[n];
}

__attribute__((noinline)) static int many(int a, int b, int c, int d, int e, int f, int g, int h, int n) {
    int r = step(n - 1);
    return r + a * b - c * d + e * f - g * h + sink;
}

struct Base {
    virtual ~Base() {}
    virtual int run(int n) = 0;
};
struct Derived : Base {
    std::string s = "some text that does not fit inside";
    int run(int n) override { return step(n - 1) + static_cast<int>(s.size()); }
};

static int callback_n;
static int compare(const void *, const void *) {
    if (int n = callback_n) {
        callback_n = 0;
        sink = step(n - 1);
    }
    return 0;
}

static int step(int n) {
    if (n <= 0) return leaf(n) + 1;
    switch (n % 7) {
    case 0: return variable(n) + 1;
    case 1: return realigned(n) + 1;
    case 2: return large(n) + 1;
    case 3: return many(1, 2, 3, 4, 5, 6, 7, 8, n) + 1;
    case 4: {
        std::unique_ptr<Base> b = std::make_unique<Derived>();
        return b->run(n) + 1;
    }
    case 5: {
        std::function<int(int)> f = [&n](int m) { return step(m - 1) + n; };
        return f(n) + 1;
    }
    default: {
        int a[3] = {3, 1, 2};
        callback_n = n;
        qsort(a, 3, sizeof a[0], compare);
        return a[0] + 1;
    }
    }
}

static void *thread(void *) {
    sink = step(strcmp(mode, "step") ? 30 : 7);
    return nullptr;
}

int main(int argc, char **argv) {
    mode = argc > 1 ? argv[1] : "plain";
    if (argc > 2) { // in another thread
        pthread_t t;
        pthread_create(&t, nullptr, thread, nullptr);
        pthread_join(t, nullptr);
    } else {
        thread(nullptr);
    }
    return 0;
}
