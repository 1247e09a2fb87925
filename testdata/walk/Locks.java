import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.lang.management.ThreadMXBean;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.ReentrantLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * Threads that wait in many ways for what others have. Prints what Java says of them, separated by bars: ID, name, state,
 * class of what is waited for, ID of its owner; then those in a deadlock, and virtual threads that are in one.
 */
public class Locks {
    static final Object first = new Object(), second = new int[0], signal = new StringBuilder(), inflated = new Object();
    static final ReentrantLock lock = new ReentrantLock(), other = new ReentrantLock(), third = new ReentrantLock();
    static final ReentrantReadWriteLock shared = new ReentrantReadWriteLock();
    static final Semaphore locked = new Semaphore(0), go = new Semaphore(0);
    static int begun, goers;

    interface Body { void run() throws Exception; }

    static Thread start(String name, Body body) {
        Thread t = new Thread(runs(body), name);
        t.setDaemon(true);
        t.start();
        begun++;
        return t;
    }

    static Runnable runs(Body body) {
        return () -> {
            try {
                body.run();
            } catch (Exception e) {
                throw new RuntimeException(e);
            }
        };
    }

    /** Says that a lock is held, and waits until all are. */
    static void hold() throws InterruptedException {
        locked.release();
        go.acquire();
    }

    static void forever() throws InterruptedException { Thread.sleep(1L << 40); }

    static Thread startVirtual(Body body) throws Exception {
        return (Thread) Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, runs(body));
    }

    public static void main(String[] args) throws Exception {
        goers = 10;
        start("holds monitor " + "of a long name".replace(' ', '-'), () -> { synchronized (first) { hold(); synchronized (second) { } } });
        start("wants monitor", () -> { synchronized (second) { hold(); synchronized (first) { } } });
        start("holds lock", () -> { lock.lock(); hold(); other.lock(); });
        start("wants lock", () -> { other.lock(); hold(); lock.lockInterruptibly(); });
        start("holds class", () -> { synchronized (Locks.class) { hold(); forever(); } });
        start("holds third", () -> { third.lock(); hold(); forever(); });
        start("writes", () -> { shared.writeLock().lock(); hold(); forever(); });
        FutureTask<String> task = new FutureTask<>(() -> { hold(); forever(); return ""; });
        start("runs future", task::run);
        Thread busy = start("busy", () -> { hold(); for (;;) begun |= 0; });
        start("holds inflated", () -> { synchronized (inflated) { try { inflated.wait(1); } finally { hold(); forever(); } } });
        locked.acquire(goers);

        start("wants first", () -> { synchronized (first) { } });
        start("wants class", () -> { synchronized (Locks.class) { } });
        start("wants inflated", () -> { synchronized (inflated) { } });
        start("tries third", () -> third.tryLock(1L << 40, java.util.concurrent.TimeUnit.SECONDS));
        start("reads", () -> shared.readLock().lock());
        start("gets future", task::get);
        start("joins", busy::join);
        start("waits", () -> { synchronized (signal) { signal.wait(); } });
        start("waits a while", () -> { synchronized (signal) { signal.wait(1L << 40); } });
        start("sleeps", Locks::forever);
        start("takes", () -> new LinkedBlockingQueue<String>().take());
        start("\u00fcber \u65e5\u672c \ud83d\ude00", () -> new Semaphore(0).acquire());

        String virtual = "";
        int release = Integer.parseInt(System.getProperty("java.specification.version").replace("1.", ""));
        if (release >= 21) {
            ReentrantLock a = new ReentrantLock(), b = new ReentrantLock();
            Thread t = startVirtual(() -> { a.lock(); hold(); b.lock(); });
            Thread u = startVirtual(() -> { b.lock(); hold(); a.lock(); });
            virtual = "virtual|" + t.getId() + "|" + u.getId() + "|java.util.concurrent.locks.ReentrantLock$NonfairSync\n";
            goers += 2;
        }
        if (release >= 21) { // before 24 they keep their carriers
            Object a = new Object(), b = new StringBuilder();
            Thread t = startVirtual(() -> { synchronized (a) { hold(); synchronized (b) { } } });
            Thread u = startVirtual(() -> { synchronized (b) { hold(); synchronized (a) { } } });
            locked.acquire(goers - 10 + 2);
            start("wants virtual", () -> { synchronized (a) { } });
            virtual += "virtual|" + t.getId() + "|" + u.getId() + "|java.lang.StringBuilder\nowner|wants virtual|" + t.getId() + "\n";
            goers += 2;
        } else {
            locked.acquire(goers - 10);
        }
        go.release(goers);
        Thread.sleep(Long.parseLong(args[0]));

        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        StringBuilder out = new StringBuilder(virtual);
        for (ThreadInfo t : threads.dumpAllThreads(false, false)) {
            String on = t.getLockInfo() == null ? "" : t.getLockInfo().getClassName();
            out.append("thread|" + t.getThreadId() + "|" + t.getThreadName() + "|" + t.getThreadState() + "|" + on + "|" + t.getLockOwnerId() + "\n");
        }
        out.append("deadlocked");
        for (long id : threads.findDeadlockedThreads()) out.append("|" + id);
        System.out.write((out + "\ndone\n").getBytes("UTF-8"));
        System.out.flush();
        System.in.read();
        System.exit(0);
    }
}
