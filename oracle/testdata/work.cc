// Virtual calls, templates of the library, and exceptions thrown through
// several kinds of frames.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#define NOINLINE __attribute__((noinline))

struct Shape {
	virtual ~Shape() = default;
	virtual double area() const = 0;
};
struct Square : Shape {
	double a;
	explicit Square(double x) : a(x) {}
	NOINLINE double area() const override { return a * a; }
};
struct Guard {
	int &n;
	explicit Guard(int &x) : n(x) { n++; }
	NOINLINE ~Guard() { n--; }
};

static int live;

NOINLINE static void thrower(int n) {
	Guard g(live);
	std::string s(n * 10 + 1, 'x');
	if (n == 0)
		throw std::runtime_error("deep " + s);
	thrower(n - 1);
}

NOINLINE static int rethrower(int n) {
	Guard g(live);
	try {
		thrower(n);
	} catch (const std::logic_error &) {
		return 1;
	} catch (...) {
		Guard h(live);
		throw;
	}
	return 2;
}

NOINLINE static size_t catcher() {
	getppid();
	try {
		rethrower(4);
	} catch (const std::exception &e) {
		return std::string(e.what()).size();
	}
	return 0;
}

int main() {
	std::map<std::string, int> m;
	std::vector<std::unique_ptr<Shape>> shapes;
	for (int i = 0; i < 8; i++) {
		m["key" + std::to_string(i * 7 % 5)] += i;
		shapes.push_back(std::make_unique<Square>(i));
	}
	double sum = 0;
	for (auto &s : shapes)
		sum += s->area();
	std::vector<int> v{5, 3, 9, 1, 7, 2};
	std::sort(v.begin(), v.end(), [](int a, int b) { return a > b; });
	std::ostringstream out;
	out << sum << ' ' << v[0] << ' ' << m.size() << ' ' << catcher();
	puts(out.str().c_str());
	return live;
}
