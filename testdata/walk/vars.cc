// Frames full of variables of C++'s types, standing still in read().
#include <cstdint>
#include <cstdio>
#include <string>
#include <unistd.h>
#include <utility>

#define NOINLINE __attribute__((noinline, noclone))
#define HIDE(x) __asm__ volatile("" : "+r"(x))

static volatile int sink;

enum class Level : short { low = -1, high = 300 };

struct Base {
	int base = 11;
	virtual ~Base() {}
	virtual int id() const { return base; }
};

struct Other {
	short other = 12;
};

struct Virtual {
	int shared = 13;
};

struct Derived : Base, Other {
	static int count;
	int own = 14;
	int id() const override { return own; }
	NOINLINE long method(const std::string &text, Derived &&rest, int &out);
};
int Derived::count = 3;

struct Diamond : virtual Virtual {
	int d = 15;
};

struct OtherSide : virtual Virtual {
	int o = 16;
};

struct Both : Diamond, OtherSide { // with one Virtual
	int b = 17;
};

template <typename T> struct Box {
	T value;
	T *again;
};

template <typename T, typename... Rest> NOINLINE static long variadic(T first, Rest... rest);

NOINLINE static long stand(bool flag, char16_t c16, char32_t c32, wchar_t w) {
	Level low = Level::low;
	bool copy = flag;
	HIDE(copy);
	printf("ready\n");
	fflush(stdout);
	char c = 0;
	long n = read(0, &c, 1);
	sink += c + (int)low + copy + c16 + c32 + w;
	return n;
}

template <typename T, typename... Rest> NOINLINE static long variadic(T first, Rest... rest) {
	auto add = [&](int more) NOINLINE {
		long captured = more + (int)first;
		long r = stand(captured > 0, u'\u00e9', U'\U0001f600', L'z');
		return r + captured;
	};
	return add(5) + (0 + ... + (long)rest);
}

long Derived::method(const std::string &text, Derived &&rest, int &out) {
	Base *base = this;
	int Derived::*member = &Derived::own;
	Box<short> box{7, nullptr};
	Box<Box<int>> nested{{1, nullptr}, nullptr};
	Diamond diamond;
	Both both;
	const int &ref = out;
	int array[3] = {out, ref, 3};
	int(&array_ref)[3] = array;
	std::pair<int, char> pair(4, 'p');
	Level high = Level::high;
	std::nullptr_t null = nullptr;
	try {
		int tried = out + 1;
		HIDE(tried);
		long r = variadic(2.5f, 3, 4L);
		if (tried < 0)
			throw tried;
		sink += base->id() + this->*member + box.value + nested.value.value + diamond.d + diamond.shared + both.b + both.shared + array_ref[1] + pair.first +
			(int)high + (null == nullptr) + (int)text.size() + rest.own;
		return r;
	} catch (int caught) {
		return caught;
	}
}

static inline __attribute__((always_inline)) long through(const Derived &in, int n) {
	Derived copy = in;
	int out = n + 1;
	long r = copy.method("hello", Derived(), out);
	return r + out;
}

int main() {
	Derived d;
	d.own = 99;
	int n = 40;
	HIDE(n);
	return (int)through(d, n) & (sink == 0);
}
