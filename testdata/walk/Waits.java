import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;

// Threads that wait some calls deep, each two calls deeper than the one before. Some of the calls are by a method handle.
public class Waits {
    static final MethodHandle handle;

    static {
        try {
            handle = MethodHandles.lookup().findStatic(Waits.class, "further", MethodType.methodType(void.class, int.class, Object.class));
        } catch (ReflectiveOperationException e) {
            throw new Error(e);
        }
    }

    // It has no variables but its arguments.
    static void further(int n, Object lock) throws Throwable {
        deep(n, lock);
    }

    static void deep(int n, Object lock) throws Throwable {
        if (n % 4 == 3) {
            handle.invokeExact(n - 1, lock);
            return;
        }
        if (n > 0) {
            deep(n - 1, lock);
            return;
        }
        synchronized (lock) {
            lock.wait();
        }
    }

    public static void main(String[] args) throws InterruptedException {
        for (int i = 0; i < 4; i++) {
            int n = 10 + 2 * i;
            Thread t = new Thread(() -> {
                try {
                    deep(n, new Object());
                } catch (Throwable e) {
                    throw new Error(e);
                }
            }, "waits" + i);
            t.start();
            while (t.getState() != Thread.State.WAITING) {
                Thread.sleep(1);
            }
        }
        System.out.println("ready");
        Thread.sleep(1000000);
    }
}
