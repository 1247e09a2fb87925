// Code of many kinds for a compiler to optimise, that runs to its end: at any
// instruction of it a debugger can stop and look.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#define NOINLINE __attribute__((noinline))

#ifdef __SIZEOF_INT128__
typedef __int128 wide_t;
#else
typedef long long wide_t;
#endif

static volatile long sink;
static thread_local unsigned per_thread = 5;

struct Flags {
	unsigned low : 3;
	int mid : 7;
	unsigned long long high : 33;
	bool on : 1;
};

struct Vec {
	double x, y, z;
	Vec operator+(const Vec &o) const { return {x + o.x, y + o.y, z + o.z}; }
	Vec operator*(double k) const { return {x * k, y * k, z * k}; }
	double dot(const Vec &o) const { return x * o.x + y * o.y + z * o.z; }
};

struct Shape {
	virtual ~Shape() {}
	virtual double area(int scale) const = 0;
	int id = 0;
};
struct Circle : Shape {
	float r;
	explicit Circle(float radius) : r(radius) {}
	double area(int scale) const override {
		double square = double(r) * r;
		return square * 3.14159 * scale;
	}
};
struct Rect : Shape {
	short w, h;
	Rect(short a, short b) : w(a), h(b) {}
	double area(int scale) const override {
		long product = long(w) * h;
		return double(product * scale);
	}
};

struct Node {
	Node *left = nullptr, *right = nullptr;
	int key;
	char tag[4];
	explicit Node(int k) : key(k), tag{'n', char('0' + k % 10), 0, 0} {}
};

NOINLINE static Node *insert(Node *n, int key, int depth) {
	if (!n)
		return new Node(key);
	Node **side = key < n->key ? &n->left : &n->right;
	*side = insert(*side, key, depth + 1);
	per_thread += depth;
	return n;
}

NOINLINE static int height(const Node *n) {
	if (!n)
		return 0;
	int l = height(n->left), r = height(n->right);
	return 1 + (l > r ? l : r);
}

NOINLINE static uint32_t hash(const unsigned char *p, size_t n) {
	uint32_t h = 2166136261u;
	for (size_t i = 0; i < n; i++) {
		uint32_t before = h;
		h = (h ^ p[i]) * 16777619u;
		if ((before ^ h) & 1)
			h += uint32_t(i);
	}
	return h;
}

NOINLINE static double integrate(double (*f)(double, int), double from, double to, int steps) {
	double sum = 0, step = (to - from) / steps;
	for (int i = 0; i < steps; i++) {
		double at = from + (i + 0.5) * step;
		double value = f(at, i);
		sum += value * step;
	}
	return sum;
}

static double wave(double x, int i) {
	float narrow = float(x) * 0.5f;
	double s = std::sin(x) + narrow;
	return i & 1 ? s : -s;
}

NOINLINE static int classify(const char *text, int base) {
	int digits = 0, letters = 0, others = 0;
	for (const char *p = text; *p; p++) {
		char c = *p;
		switch (c) {
		case '0' ... '9':
			digits += c - '0' + base;
			break;
		case 'a' ... 'z':
			letters++;
			break;
		default:
			others ^= c;
		}
	}
	return digits * 10000 + letters * 100 + others;
}

NOINLINE static Vec bounce(Vec at, Vec speed, Flags f, unsigned char count) {
	Vec now = at;
	for (unsigned char i = 0; i < count; i++) {
		Vec next = now + speed * 0.25;
		if (next.dot(now) < 0 && f.on)
			speed = speed * -1;
		now = next;
		f.mid = f.mid + 1;
	}
	sink += f.mid + long(f.high) + f.low;
	return now;
}

NOINLINE static long tail(long n, long sum);
NOINLINE static long tail2(long n, long sum) {
	long half = n / 2;
	return tail(half, sum + half);
}
NOINLINE static long tail(long n, long sum) {
	if (n <= 1)
		return sum;
	return tail2(n - 1, sum + n);
}

NOINLINE static wide_t wide(wide_t a, unsigned long long b) {
	wide_t product = a * b;
	wide_t shifted = product >> 3;
	return shifted ^ a;
}

NOINLINE static int thrower(int n) {
	std::string message = "no " + std::to_string(n);
	if (n % 3 == 0)
		throw std::runtime_error(message);
	return int(message.size());
}

NOINLINE static int catcher(int from, int to) {
	int caught = 0, sum = 0;
	for (int i = from; i < to; i++) {
		try {
			int got = thrower(i);
			sum += got;
		} catch (const std::runtime_error &e) {
			caught += int(strlen(e.what()));
		}
	}
	return caught * 100 + sum;
}

NOINLINE static long containers(unsigned seed, int n) {
	std::vector<int> numbers;
	std::map<std::string, int> words;
	for (int i = 0; i < n; i++) {
		seed = seed * 1103515245u + 12345u;
		int value = int(seed >> 16) % 1000;
		numbers.push_back(value);
		words["w" + std::to_string(value % 17)] += value;
	}
	std::sort(numbers.begin(), numbers.end(), [n](int a, int b) { return a % n != b % n ? a % n < b % n : a < b; });
	long total = std::accumulate(numbers.begin(), numbers.end(), 0L);
	for (const auto &[word, count] : words)
		total += long(word.size()) * count;
	std::array<short, 8> few{};
	for (size_t i = 0; i < few.size(); i++)
		few[i] = short(numbers[i % numbers.size()] * 3);
	auto best = std::max_element(few.begin(), few.end());
	return total + *best;
}

NOINLINE static long variable(int rows, int cols) {
	int grid[rows][cols];
	for (int r = 0; r < rows; r++)
		for (int c = 0; c < cols; c++)
			grid[r][c] = r * cols + c;
	long trace = 0;
	for (int i = 0; i < rows && i < cols; i++)
		trace += grid[i][i];
	return trace;
}

int main(int argc, char **argv) {
	int rounds = argc + 1;
	long total = 0;
	Node *root = nullptr;
	for (int round = 0; round < rounds; round++) {
		int keys[] = {50, 20, 70, 10, 30, 60, 80, 25, round};
		for (int key : keys)
			root = insert(root, key, round);
		total += height(root);
		total += hash(reinterpret_cast<const unsigned char *>(argv[0]), strlen(argv[0]));
		total += long(integrate(wave, round, round + 2.5, 7));
		total += classify("a1b2-c3 zz", round);
		Flags f{5, -3, 1ULL << 32, round == 0};
		Vec v = bounce({1, 2, 3}, {-2, -1, 0.5}, f, 6);
		total += long(v.x * 10) + tail(20 + round, 1);
		total += long(wide((wide_t(1) << (8 * sizeof(wide_t) - 58)) + round, 12345) >> 60);
		total += catcher(round, round + 4);
		total += containers(unsigned(round) + 7, 12);
		total += variable(3 + round, 4);
		std::unique_ptr<Shape> shapes[] = {std::make_unique<Circle>(1.5f), std::make_unique<Rect>(3, -4)};
		std::function<double(int)> all = [&](int scale) {
			double sum = 0;
			for (auto &s : shapes)
				sum += s->area(scale);
			return sum;
		};
		total += long(all(round + 1));
	}
	sink = total + per_thread;
	printf("%ld\n", long(sink));
	return 0;
}
