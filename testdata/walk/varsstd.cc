// Frames with variables of the types of C++'s library, standing still in read().
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <forward_list>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#define NOINLINE __attribute__((noinline))

struct Point {
	int x, y;
};

struct Order {
	std::string name;
	std::vector<int> prices;
	std::shared_ptr<Point> at;
};

// Objects of libraries that are anything but what the library makes.
template <typename T> union Broken {
	T value;
	unsigned long words[sizeof(T) / sizeof(long)];
	Broken() { memset(this, 0, sizeof *this); }
	~Broken() {}
};

NOINLINE long broken() {
	Broken<std::string> wild, endless;
	wild.words[0] = 16, wild.words[1] = 3, wild.words[2] = 100;
	endless.value = "a text on the heap, for it is long";
	endless.words[1] = ~0ul >> 1;
	Broken<std::vector<int>> backwards, huge, nowhere;
	backwards.words[0] = 4096, backwards.words[1] = 0, backwards.words[2] = 8192;
	huge.words[0] = 0, huge.words[1] = huge.words[2] = ~3ul;
	nowhere.words[0] = 16, nowhere.words[1] = nowhere.words[2] = 4096;
	Broken<std::map<int, int>> loop;
	new (&loop.value) std::map<int, int>{{1, 2}};
#ifdef _LIBCPP_VERSION
	const int root = 1, right = 1;
#else
	const int root = 2, right = 3;
#endif
	long *node = *(long **)(&loop.words[root]); // which becomes its own child
	node[right] = (long)node;
	for (auto &w : loop.words)
		if (w == 1)
			w = 1ul << 40;
	puts("ready");
	fflush(stdout);
	char c;
	return read(0, &c, 1) + (long)wild.words[0] + endless.words[0] + backwards.words[0] + huge.words[0] + nowhere.words[0] + node[0];
}

NOINLINE long stand(const std::string &ref, std::vector<std::string> &names, Order order, std::string_view view) {
	std::string text = "a \"string\"\n", empty, heap = "a string that is too long for the buffer in it", many(1000, 'x'), cut;
	for (int i = 0; i < 120; i++)
		cut += "\u00e9\u0436.";
	std::wstring wide = L"wide \u00e9";
	std::u16string s16 = u"sixteen";
	std::u32string s32 = U"thirty-two";
	std::vector<int> ints{1, 2, 3}, none;
	std::vector<bool> bits{true, false, true};
	std::vector<Point> points{{1, 2}, {3, 4}};
	std::vector<std::vector<int>> nested{{1}, {2, 3}};
	std::array<short, 3> few{7, 8, 9};
	std::unique_ptr<Point> owner(new Point{5, 6}), nobody;
	std::shared_ptr<Point> shared = std::make_shared<Point>(Point{1, 1}), same = shared, null;
	std::weak_ptr<Point> weak = shared, expired = std::make_shared<Point>();
	std::optional<int> some = 42, nothing;
	std::optional<std::string> inside = "inside";
	std::pair<int, std::string> both(1, "one");
	std::tuple<int, double, std::string> three(1, 2.5, "three");
	std::map<std::string, int> words{{"one", 1}, {"two", 2}, {"three", 3}}, nowords;
	std::map<int, long double> wider{{1, 0.5}};
	std::multimap<int, Point> pairs{{1, {1, 2}}, {1, {3, 4}}};
	std::map<int, int> squares;
	for (int i = 0; i < 1000; i++)
		squares[i] = i * i;
	std::set<int> numbers{3, 1, 2};
	std::unordered_map<std::string, double> prices{{"tea", 1.5}};
	std::unordered_map<int, long double> wide_hash{{1, 0.5}};
	std::unordered_set<int> hashed{10};
	std::list<int> list{1, 2, 3}, nolist;
	std::list<std::string> texts{"a", "b"};
	std::forward_list<int> forward{1, 2};
	std::deque<int> queue, noqueue;
	for (int i = 0; i < 300; i++)
		queue.push_back(i);
	for (int i = 0; i < 150; i++)
		queue.pop_front();
	std::atomic<int> counter{7};
	std::atomic<bool> flag{true};
	std::atomic<Point *> pointer{nullptr};
	std::variant<int, std::string> variant = "held";
	std::variant<int, double> number = 3;
	long n = broken();
	return n + (long)text.size() + few[0] + bits[0] + counter + flag + (long)ref.size() + (long)names.size() + order.prices[0] + view[0];
}

int main() {
	std::vector<std::string> names{"x", "y"};
	Order order{"o", {1, 2}, nullptr};
	return (int)stand("ref", names, order, "view");
}
