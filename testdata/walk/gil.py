"""A thread that has the interpreter's lock and wants a mutex, and one that has that and wants the lock; and others that want
it. Usage: gil.py [deadlock]"""
import ctypes
import sys
import threading
import time

mutex = ctypes.create_string_buffer(64)
holding, releasing = ctypes.PyDLL(None), ctypes.CDLL(None)  # the lock while they call
locked = threading.Event()


def has_mutex():
    releasing.pthread_mutex_lock(mutex)
    locked.set()
    time.sleep(0.5)
    releasing.pthread_mutex_unlock(mutex)


def wants_mutex():
    locked.wait()
    time.sleep(0.1)
    holding.pthread_mutex_lock(mutex)


def spins():
    while True:
        pass


print("ready", flush=True)
for target in [has_mutex, wants_mutex] if len(sys.argv) > 1 else [spins, spins, spins]:
    threading.Thread(target=target, daemon=True).start()
time.sleep(1000)
