/** Makes compiled methods invalid that are on the stack: they have inlined the only
 *  method of that name, until a class comes that has another. */
public class Deopt {
    static class Base {
        int f(int n) { return n; }
    }
    static class Other extends Base {
        @Override int f(int n) { return n + 1; }
    }

    static volatile boolean load;

    static int bottom(int n) {
        if (!load) return n;
        load = false;
        new Other();
        System.out.println("deoptimized");
        try {
            Thread.sleep(600_000);
        } catch (InterruptedException e) {
        }
        return n;
    }

    static int down(int n, Base b) {
        return n == 0 ? bottom(b.f(n)) : down(n - 1, b) + b.f(n);
    }

    public static void main(String[] args) {
        Base b = new Base();
        long sum = 0;
        for (int i = 0; i < 200_000; i++) sum += down(40, b);
        load = true;
        System.out.println(sum + down(40, b));
    }
}
