// Threads that wait some calls deep, each two calls deeper than the one before.
public class Waits {
    static void deep(int n, Object lock) throws InterruptedException {
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
                } catch (InterruptedException e) {
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
