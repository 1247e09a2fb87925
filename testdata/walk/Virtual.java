import java.lang.reflect.Method;
import java.util.concurrent.locks.ReentrantLock;

/** Virtual threads that yield, sleep and wait for a lock, deep in calls, for so many milliseconds. */
public class Virtual {
    static final ReentrantLock lock = new ReentrantLock();
    static volatile long sink;

    public static void main(String[] args) throws Exception {
        // By reflection: the source is of a release without them.
        Method start = Thread.class.getMethod("startVirtualThread", Runnable.class);
        for (int i = 0; i < 8; i++) {
            int n = i;
            start.invoke(null, (Runnable) () -> run(n));
        }
        Thread.sleep(Long.parseLong(args[0]));
        System.exit(0);
    }

    static void run(int n) {
        for (;;) deep(n % 3 == 0 ? 1 : 12, n);
    }

    static void deep(int depth, int n) {
        if (depth > 0) deep(depth - 1, n);
        else rounds(n);
        sink += spin(200);
    }

    static void rounds(int n) {
        for (int i = 0; i < 20; i++) {
            sink += spin(2000);
            waits(n + i);
        }
    }

    static void waits(int how) {
        if (how % 4 == 0) sleep();
        else if (how % 4 == 1) locks();
        else Thread.yield();
        sink += spin(500);
    }

    static void sleep() {
        try {
            Thread.sleep(0, 1000);
        } catch (InterruptedException e) {
            throw new RuntimeException(e);
        }
    }

    static void locks() {
        lock.lock();
        try {
            sink += spin(300);
            Thread.yield();
        } finally {
            lock.unlock();
        }
    }

    static long spin(int n) {
        long sum = 0;
        for (int i = 0; i < n; i++) sum += Integer.toString(i).hashCode();
        return sum;
    }
}
