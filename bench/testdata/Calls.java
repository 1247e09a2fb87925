import java.util.HashMap;

/** Calls SECONDS: methods that call each other, by interfaces, twelve deep, and make garbage. */
public class Calls {
    interface Op {
        long of(long x, int depth);
    }

    static final Op[] OPS = {new Mix(), new Add(), new Text(), new Table()};

    static long next(int shift, long x, int depth) {
        return OPS[(int) (x >>> shift) & 3].of(x, depth - 1);
    }

    static class Mix implements Op {
        public long of(long x, int depth) {
            return depth == 0 ? x * 31 + 7 : next(0, x ^ depth, depth) + 1;
        }
    }

    static class Add implements Op {
        public long of(long x, int depth) {
            return depth == 0 ? x * 17 + 3 : next(1, x + depth, depth) ^ x;
        }
    }

    static class Text implements Op {
        public long of(long x, int depth) {
            int n = new StringBuilder().append(x).length();
            return depth == 0 ? n : next(2, x + n, depth);
        }
    }

    static class Table implements Op {
        final HashMap<Long, Long> counts = new HashMap<>();

        public long of(long x, int depth) {
            counts.merge(x & 1023, 1L, Long::sum);
            return depth == 0 ? x : next(3, x * 3, depth);
        }
    }

    public static void main(String[] args) {
        long end = System.nanoTime() + Long.parseLong(args[0]) * 1_000_000_000L, x = 1;
        while (System.nanoTime() < end) {
            for (int i = 0; i < 1000; i++) {
                x += next(0, x, 12);
            }
        }
        System.out.println(x);
    }
}
