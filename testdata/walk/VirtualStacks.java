import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Virtual threads that wait in many ways, in methods that are compiled and such that are not. Prints what Java says of
 * their stacks: ID, name and frames, the innermost first.
 */
public class VirtualStacks {
    static final ReentrantLock lock = new ReentrantLock();
    static final Object monitor = new Object(), signal = new Object();
    static final LinkedBlockingQueue<String> queue = new LinkedBlockingQueue<>();
    static final int KINDS = 10;
    static volatile long sink;
    static final AtomicInteger spinning = new AtomicInteger();

    public static void main(String[] args) throws Exception {
        System.out.println("ready");
        for (int i = 0; i < 30_000; i++) sink += calls(i % 5, -1) + many(3, -1, 1, 2, 3, 4, 5, 6, 7, 1.0, 2.0);
        lock.lock();
        Method ofVirtual = Thread.class.getMethod("ofVirtual");
        Method unstarted = Class.forName("java.lang.Thread$Builder").getMethod("unstarted", Runnable.class);
        Method name = Class.forName("java.lang.Thread$Builder").getMethod("name", String.class);
        Thread[] threads = new Thread[KINDS * 6];
        synchronized (monitor) {
            for (int i = 0; i < threads.length; i++) {
                int kind = i % KINDS, depth = i * 7 % 90;
                threads[i] = (Thread) unstarted.invoke(name.invoke(ofVirtual.invoke(null), "kind-" + kind), (Runnable) () -> first(kind, depth));
                threads[i].start();
                if (kind == 9) Thread.sleep(5);
            }
            Thread.sleep(Long.parseLong(args[0]));
            while (!Arrays.stream(threads).allMatch(VirtualStacks::hasBegun)) {
                // Some wait for the carrier that does nothing else any more, unless another one looks for work.
                ((Thread) unstarted.invoke(ofVirtual.invoke(null), (Runnable) () -> { })).start();
                Thread.sleep(20);
            }
            if (args.length > 1) System.gc();
            for (Thread t : threads) {
                StringBuilder line = new StringBuilder(t.getId() + " " + t.getName() + " " + t.getState());
                for (StackTraceElement e : t.getStackTrace()) line.append(' ').append(e.getClassName()).append('.').append(e.getMethodName()).append(':').append(e.getLineNumber());
                System.out.println(line);
            }
            if (args.length > 2) System.gc(); // and the stacks that were looked at are another's
            System.out.println("done");
            System.in.read();
        }
        System.exit(0);
    }

    static boolean hasBegun(Thread t) {
        return Arrays.stream(t.getStackTrace()).anyMatch(e -> e.getMethodName().equals("once"));
    }

    static void first(int kind, int depth) {
        sink += once(kind, depth); // interpreted
    }

    static long once(int kind, int depth) {
        long sum = kind;
        for (int i = 0; i < 3; i++) sum += i;
        return sum + (kind % 2 == 0 ? calls(depth, kind) : many(depth, kind, 1, 2, 3, 4, 5, 6, 7, 1.5, 2.5));
    }

    static long calls(int depth, int kind) {
        if (depth > 0) return 1 + many(depth - 1, kind, 7, 6, 5, 4, 3, 2, depth, depth, 0.5);
        return kind < 0 ? 1 : waits(kind);
    }

    static long many(int depth, int kind, long a, long b, long c, long d, long e, long f, long g, double x, double y) {
        if (depth > 0) {
            long sum = calls(depth - 1, kind);
            return sum + a + b * c + d * e + f * g + (long) (x * y);
        }
        return kind < 0 ? a : waits(kind) + b;
    }

    static long waits(int kind) {
        switch (kind) {
            case 0: LockSupport.park(); break;
            case 1: sleep(); break;
            case 2: lock.lock(); break;
            case 3: take(); break;
            case 4: returns(60); LockSupport.park(signal); break;
            case 5: yields(); break;
            case 6: locked(); break;
            case 7: waitsFor(); break;
            case 8: spins(); break;
            default: LockSupport.parkNanos(1L << 50);
        }
        return kind;
    }

    static void sleep() {
        try {
            Thread.sleep(1L << 40);
        } catch (InterruptedException e) {
            throw new RuntimeException(e);
        }
    }

    static void take() {
        try {
            queue.take();
        } catch (InterruptedException e) {
            throw new RuntimeException(e);
        }
    }

    /** Yields so deep in calls, and again each time that some of them have returned. */
    static long returns(int depth) {
        long sum = depth == 0 ? 0 : returns(depth - 1) + depth;
        if (depth % 10 == 0) Thread.yield();
        return sum;
    }

    static void yields() {
        for (int i = 0; i < 50; i++) Thread.yield();
        LockSupport.park();
    }

    static void locked() {
        if (virtualMonitors()) {
            synchronized (monitor) {
                sink++;
            }
        } else LockSupport.park();
    }

    static void waitsFor() {
        if (!virtualMonitors()) {
            LockSupport.park();
            return;
        }
        synchronized (signal) {
            try {
                signal.wait();
            } catch (InterruptedException e) {
                throw new RuntimeException(e);
            }
        }
    }

    /** Runs on, with most of its frames in the heap; one alone, as there may be no more than two CPUs. */
    static void spins() {
        Thread.yield();
        if (spinning.incrementAndGet() > 1) LockSupport.park();
        for (;;) sink++;
    }

    /** Whether a thread that waits for a monitor gives back its carrier. */
    static boolean virtualMonitors() {
        return Integer.parseInt(System.getProperty("java.specification.version")) >= 24;
    }
}
