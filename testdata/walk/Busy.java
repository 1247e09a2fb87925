import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.LongUnaryOperator;
import java.util.stream.LongStream;

/** Keeps the processor busy for some seconds of its time with what Java programs do:
 *  recursion, lambdas and streams, allocation, collections, exceptions,
 *  virtual calls. */
public class Busy {
    interface Shape { double area(int n); }
    static final class Square implements Shape { public double area(int n) { return n * (double) n; } }
    static final class Circle implements Shape { public double area(int n) { return Math.sin(n) * n; } }
    static final class Tower implements Shape { public double area(int n) { return n == 0 ? 1 : area(n - 1) / 2 + n; } }

    static long fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

    static long apply(LongUnaryOperator f, long x, int depth) {
        return depth == 0 ? f.applyAsLong(x) : apply(y -> f.applyAsLong(y + 1), x, depth - 1);
    }

    static int thrown(int n) {
        if (n == 0) throw new IllegalStateException("bottom");
        return thrown(n - 1) + 1;
    }

    static long collections(int n) {
        Map<Integer, List<String>> m = new HashMap<>();
        for (int i = 0; i < n; i++) m.computeIfAbsent(i % 97, k -> new ArrayList<>()).add("v" + i);
        return m.values().stream().mapToLong(l -> l.stream().mapToLong(String::hashCode).sum()).sum();
    }

    static double work(int round) {
        Shape[] shapes = {new Square(), new Circle(), new Tower()};
        double sum = fib(18);
        for (int i = 0; i < 300; i++) sum += shapes[i % 3].area(i % 40);
        sum += apply(x -> x * 3, round, 20);
        sum += collections(2000);
        sum += LongStream.range(0, 2000).filter(x -> x % 3 == 0).map(x -> x * x).sum();
        try {
            sum += thrown(30);
        } catch (IllegalStateException e) {
            sum += e.getStackTrace().length;
        }
        return sum;
    }

    /** Nanoseconds that this thread was on a CPU. */
    static long spent() throws IOException {
        String stat = new String(Files.readAllBytes(Paths.get("/proc/thread-self/schedstat")));
        return Long.parseLong(stat.substring(0, stat.indexOf(' ')));
    }

    public static void main(String[] args) throws IOException {
        long end = spent() + Long.parseLong(args[0]) * 1_000_000L;
        double sum = 0;
        for (int round = 0; round % 32 != 0 || spent() < end; round++) sum += work(round);
        System.out.println(sum);
    }
}
