# Tasks of asyncio that wait in many ways, and what each runs, as Python itself tells it.
import asyncio
import gc
import json
import sys
import threading
import time
import types

NEW_NAMES = sys.version_info >= (3, 11)


def name(code):
    return code.co_qualname if NEW_NAMES else code.co_name


def call(frame):
    return "%s %s:%d" % (name(frame.f_code), frame.f_code.co_filename, frame.f_lineno)


# chain returns what a coroutine runs, outermost first.
def chain(c):
    calls = []
    while c is not None:
        frame = None
        for at, next in ("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"):
            if hasattr(c, at):
                frame, c = getattr(c, at), getattr(c, next)
                break
        else:
            inner = [o for o in gc.get_referents(c) if isinstance(o, (types.AsyncGeneratorType, types.CoroutineType))]
            c = inner[0] if inner else None
            continue
        if frame is None:
            break
        calls.append(call(frame))
    return calls


async def pause(forever):
    await forever


async def sleeper(forever):
    await asyncio.sleep(10000)


async def waits_for(other):
    return await other


async def gathers(others):
    await asyncio.gather(*others)


async def has(lock, forever):
    async with lock:
        await pause(forever)


async def wants(lock):
    async with lock:
        pass


async def numbers(forever):
    yield 1
    await pause(forever)
    yield 2


async def iterates(forever):
    async for n in numbers(forever):
        pass


async def comprehends(forever):
    return [n async for n in numbers(forever)]


@types.coroutine
def old_style(forever):
    yield from pause(forever)


async def calls_old_style(forever):
    await old_style(forever)


class Awaited:
    def __init__(self, forever):
        self.forever = forever

    def __await__(self):
        yield from pause(self.forever).__await__()


class Derived:
    class Method:
        async def method(self, forever):
            await Awaited(forever)


async def deep(n, forever):
    if n == 0:
        await forever
    else:
        await deep(n - 1, forever)


async def limited(forever):
    await asyncio.wait_for(start(asyncio.get_running_loop(), pause(forever), "limit"), 10000)


async def awaits_all(others):
    await asyncio.wait(others)


async def grouped(forever):
    async with asyncio.TaskGroup() as group:
        for i in range(2):
            made["member-%d" % i] = group.create_task(pause(forever))


sockets = {}  # that tasks wait for


async def serves(reader, writer):
    sockets[asyncio.current_task()] = writer.get_extra_info("socket").fileno()
    await reader.read()


async def connects(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sockets[asyncio.current_task()] = writer.get_extra_info("socket").fileno()
    await reader.readline()


class OwnTask(asyncio.Task):
    pass


def stands():
    time.sleep(10000)


async def runs():
    stands()


async def never_run():
    pass


made = {}  # tasks by their titles, which are their names from 3.8 on


def start(loop, coroutine, title=None):
    task = made[title] = loop.create_task(coroutine)
    if title and hasattr(task, "set_name"):
        task.set_name(title)
    return task


# main starts them, and what is told is told when all wait.
async def main():
    loop = asyncio.get_running_loop()
    forever = loop.create_future()
    for i in range(3):
        start(loop, sleeper(forever), "sleeper-%d" % i)
    child = start(loop, pause(forever), "child")
    start(loop, waits_for(child), "parent")
    start(loop, gathers([start(loop, pause(forever), "part-%d" % i) for i in range(3)]), "whole")
    lock = asyncio.Lock()
    start(loop, has(lock, forever), "has")
    start(loop, wants(lock), "wants")
    start(loop, iterates(forever), "iterates")
    start(loop, comprehends(forever), "comprehends")
    start(loop, calls_old_style(forever))
    start(loop, Derived.Method().method(forever), "méthod")
    start(loop, deep(100, forever), "deep")
    start(loop, limited(forever), "limited")
    start(loop, awaits_all([start(loop, pause(forever), "one-%d" % i) for i in range(2)]), "all")
    start(loop, waits_for(asyncio.ensure_future(pause(forever))), "x" * 300)
    own = OwnTask(pause(forever))
    if hasattr(own, "set_name"):
        own.set_name("own")
    if hasattr(asyncio, "TaskGroup"):
        start(loop, grouped(forever), "grouped")
    if hasattr(asyncio, "eager_task_factory"):
        loop.set_task_factory(asyncio.eager_task_factory)
        start(loop, pause(forever), "eager")
        loop.set_task_factory(None)
    server = await asyncio.start_server(serves, "127.0.0.1", 0)
    start(loop, connects(server.sockets[0].getsockname()[1]), "client")
    other = asyncio.new_event_loop()
    threading.Thread(target=blocks, args=(other,), daemon=True).start()
    loop.call_later(0.5, tell, loop, other)
    await forever


# blocks runs a loop that a task stands in the way of.
def blocks(loop):
    asyncio.set_event_loop(loop)
    start(loop, runs(), "runs")
    start(loop, never_run(), "never run")
    loop.run_forever()


def name_of(task):
    return task.get_name() if hasattr(task, "get_name") else ""


# tell writes each task of some loops, and that it was the last one.
def tell(*loops):
    print("ready")
    for task in [t for loop in loops for t in asyncio.all_tasks(loop)]:
        coroutine = task.get_coro() if hasattr(task, "get_coro") else task._coro
        if coroutine.cr_running:
            state, calls = "running", stack_of(coroutine.cr_frame)
        else:
            state, calls = "waiting" if task._fut_waiter else "ready", chain(coroutine)[::-1]
        waits = task._fut_waiter
        others = [waits] if isinstance(waits, asyncio.Task) else getattr(waits, "_children", [])
        for function, title in ("TaskGroup.", "member-"), ("_wait ", "one-"), ("wait_for ", "limit"):
            if calls[0].startswith(function):
                others = [made[t] for t in made if t and t.startswith(title) and t != "limited"]
        print(json.dumps({"addr": id(task), "name": name_of(task), "state": state, "calls": calls,
            "socket": sockets.get(task, -1), "blocker": type(waits).__name__ if waits else "", "others": sorted(id(t) for t in others)}))
    print("null")
    sys.stdout.flush()


# stack_of returns what a thread runs, innermost first, up to a frame.
def stack_of(last):
    for frame in sys._current_frames().values():
        calls = []
        while frame is not None:
            calls.append(call(frame))
            if frame is last:
                return calls
            frame = frame.f_back
    return []


asyncio.run(main())
