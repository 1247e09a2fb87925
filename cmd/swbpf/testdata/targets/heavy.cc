// A translation unit that keeps cc1plus busy for some seconds.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

template <int N> struct item {
  std::map<std::string, std::vector<std::pair<int, std::string>>> table;
  std::variant<int, double, std::string, std::vector<int>> value;
  std::function<int(int)> f = [this](int x) { return x + int(table.size()) * N; };
  int run(int x) {
    std::vector<std::tuple<int, std::string, double>> v;
    for (int i = 0; i < x; i++)
      v.emplace_back(i, std::to_string(i * N), i * 0.5);
    std::sort(v.begin(), v.end(), [](auto &a, auto &b) { return std::get<2>(a) > std::get<2>(b); });
    std::regex re("([a-z]+)" + std::to_string(N));
    std::smatch m;
    std::string s = "abc" + std::to_string(N);
    if (std::regex_match(s, m, re))
      table[s].push_back({N, m[1].str()});
    std::visit([&](auto &&a) { value = a; }, value);
    return f(std::accumulate(v.begin(), v.end(), 0, [](int a, auto &t) { return a + std::get<0>(t); })) + item<N - 1>().run(x);
  }
};
template <> struct item<0> {
  int run(int x) { return x; }
};

int main(int argc, char **) { std::cout << item<10>().run(argc) << "\n"; }
