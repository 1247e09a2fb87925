// Uses much of the standard library, for many inlined calls and long names.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace names {

using Value = std::variant<long, double, std::string, std::vector<long>>;

template <class K, class V> struct Index {
	std::map<K, std::vector<V>> ordered;
	std::unordered_map<std::string, std::shared_ptr<V>> hashed;
	void add(const K &k, V v)
	{
		std::ostringstream key;
		key << k;
		hashed[key.str()] = std::make_shared<V>(v);
		ordered[k].push_back(std::move(v));
	}
	template <class F> auto fold(F f) const
	{
		decltype(f(std::declval<V>())) sum{};
		for (auto &[k, list] : ordered)
			for (auto &v : list)
				sum += f(v);
		return sum;
	}
};

struct Visitor {
	long operator()(long v) const { return v; }
	long operator()(double v) const { return long(v * 3); }
	long operator()(const std::string &s) const { return std::accumulate(s.begin(), s.end(), 0L); }
	long operator()(const std::vector<long> &v) const { return std::accumulate(v.begin(), v.end(), 0L); }
};

static long words(const std::string &text)
{
	std::regex word("([a-z]+)([0-9]*)(_[A-Z]?)*");
	std::set<std::string> seen;
	for (std::sregex_iterator i(text.begin(), text.end(), word), end; i != end; ++i)
		seen.insert((*i)[1].str() + (*i)[2].str());
	return long(seen.size());
}

template <class T> static T sorted(std::vector<T> v)
{
	std::mt19937 random(7);
	std::shuffle(v.begin(), v.end(), random);
	std::stable_sort(v.begin(), v.end(), [](const T &a, const T &b) { return b < a; });
	std::partial_sort(v.begin(), v.begin() + v.size() / 2, v.end());
	return v[v.size() / 2];
}

} // namespace names

int main(int argc, char **argv)
{
	names::Index<std::string, names::Value> index;
	names::Index<long, double> numbers;
	std::vector<std::string> all;
	for (int i = 0; i < argc + 20; i++) {
		std::string s = argv[i % argc] + std::to_string(i);
		all.push_back(s);
		index.add(s, long(i));
		index.add(s + "x", 0.5 * i);
		index.add(s + "y", std::vector<long>(i, 2));
		numbers.add(i, 1.0 / (i + 1));
	}
	std::function<long(const names::Value &)> f = [](const names::Value &v) { return std::visit(names::Visitor{}, v); };
	try {
		std::cout << index.fold(f) << ' ' << numbers.fold([](double d) { return d; }) << ' ' << names::sorted(all) << '\n';
		if (argc > 1000)
			throw std::runtime_error(all[0]);
	} catch (const std::exception &e) {
		std::cerr << e.what() << '\n';
	}
	return int(names::words(all[0] + " " + all[1])) & 0;
}
