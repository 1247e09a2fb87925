// The same in C++, with templates, virtual calls, and a standard algorithm in
// between.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <unistd.h>
#include <vector>

struct Base {
	virtual int go(int n) = 0;
	virtual ~Base() {}
};

template <int K> struct Step : Base {
	Base *next;
	int go(int n) override {
		volatile char pad[32 + K];
		pad[n & 15] = n;
		int r = next->go(n - 1);
		return r + pad[n & 15];
	}
};

struct Leaf : Base {
	int go(int n) override {
		std::vector<int> v{3, 2, 1};
		std::for_each(v.begin(), v.begin() + 1, std::function<void(int)>([&](int x) {
			std::puts("ready");
			std::fflush(stdout);
			pause();
			n += x;
		}));
		return n;
	}
};

int main() {
	Leaf leaf;
	std::vector<Base *> chain{&leaf};
	for (int i = 0; i < 24; i++) {
		auto *a = new Step<8>;
		a->next = chain.back();
		chain.push_back(a);
		auto *b = new Step<32>;
		b->next = chain.back();
		chain.push_back(b);
	}
	return chain.back()->go(48);
}
