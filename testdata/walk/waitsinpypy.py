"""Waits in code that PyPy's compiler has made, in calls that another thread tells then, innermost first."""
import array
import fcntl
import json
import os
import sys
import termios
import threading
import time

r, w = os.pipe()


def leaf():
    os.read(r, 1)


def middle(i):
    leaf()
    return i + 1


def inlined(n):
    total = 0
    for i in range(n):
        total += middle(i)
    return total


def rare(i):
    leaf()
    return i - 1


def either(i):
    if i % 4 == 3:
        return rare(i)
    leaf()
    return i


def otherwise(n):
    total = 0
    for i in range(n + 4):
        total += either(i)
    return total


def chain(n):
    if n == 0:
        return leaf()
    return chain(n - 1)


def recursion(n):
    for i in range(n):
        chain(20)


def numbers(n):
    for i in range(n):
        leaf()
        yield i


def generator(n):
    total = 0
    for i in numbers(n):
        total += i
    return total


def loop(n):
    for i in range(n):
        leaf()


def loops(n):
    for i in range(n):
        loop(100)


def key(i):
    leaf()
    return -i


def called(n):
    for i in range(n):
        sorted([i] * 100, key=key)


# What each calls when it waits.
ways = {
    "inlined": ["leaf", "middle", "inlined"],
    "otherwise": ["leaf", "rare", "otherwise"],
    "recursion": ["leaf"] + 21 * ["chain"] + ["recursion"],
    "generator": ["leaf", "numbers", "generator"],
    "loops": ["leaf", "loop", "loops"],
    "called": ["leaf", "key", "called"],
}
ways["otherwise"].insert(2, "either")

# So many times each calls leaf, before it waits.
count = 20003
os.write(w, b"." * count)


def tell(calls):
    left = array.array("i", [1])
    while left[0]:
        time.sleep(0.01)
        fcntl.ioctl(r, termios.FIONREAD, left)
    os.write(1, (json.dumps({"tid": os.getpid(), "calls": calls}) + "\n").encode())
    time.sleep(1000)


way = sys.argv[1]
threading.Thread(target=tell, args=[ways[way] + ["<module waitsinpypy.py>"]], daemon=True).start()
globals()[way](2 * count)
