"""Computes for so many seconds of CPU time: methods, a generator, a function that C calls, recursion."""
import sys
import time


class Shape:
    def area(self, n):
        return helper(n) + self.more(n)

    def more(self, n):
        return sum(x * x for x in range(n % 50))


def helper(n):
    return len(str(n)) if n % 2 else sorted(range(n % 30), key=key)[0] if n % 30 else 0


def key(x):
    return -x * 7 % 31


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def work(i):
    s = Shape()
    return fib(12) + sum(map(s.area, range(100)))


def main():
    end = time.process_time() + float(sys.argv[1])
    while time.process_time() < end:
        for i in range(10):
            work(i)


main()
