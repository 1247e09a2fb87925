# Makes functions, calls them and lets go of them, for some seconds of the time that it runs.
import sys, time


def helper(n):
    total = 0
    for i in range(n):
        total += i
    return total


def work():
    for k in range(50):
        text = "def g%d():\n  for _ in range(20): helper(3000)\ng%d()" % (k, k)
        exec(compile(text, "<made>", "exec"), {"helper": helper})


while time.process_time() < float(sys.argv[1]):
    work()
