import java.util.Arrays;
import java.util.TreeMap;

/** Compares strings for some milliseconds, in a tree and to sort them, and looks for
 *  some in others. */
public class Compares {
    static int tree(String[] keys) {
        TreeMap<String, Integer> m = new TreeMap<>();
        for (String k : keys) m.merge(k, 1, Integer::sum);
        return m.size();
    }

    static String[] keys(int n, String common) {
        String[] keys = new String[n];
        for (int i = 0; i < n; i++) keys[i] = common + Integer.toHexString(i * 7919 % 1000);
        return keys;
    }

    static long search(String text, String[] keys) {
        long sum = 0;
        for (int i = 0; i < 300; i++) {
            String k = keys[i];
            sum += text.indexOf(k, i % 9) + text.indexOf("of strings that") + k.indexOf(keys[i + 1].substring(1));
        }
        return sum;
    }

    public static void main(String[] args) {
        long end = System.nanoTime() + Long.parseLong(args[0]) * 1_000_000L, sum = 0;
        String[] short_ = keys(3000, ""), long_ = keys(3000, "a longer string with much in common"), wide = keys(3000, "\u0394");
        String text = String.join(" ", Arrays.copyOf(long_, 9)) + " and no more of strings", other = text + wide[1];
        while (System.nanoTime() < end) {
            sum += tree(short_) + tree(long_) + tree(wide);
            for (int i = 0; i < 9; i++) sum += search(text, short_) + search(other, short_) + search(other, wide) + search(text, long_);
            String[] sorted = long_.clone();
            Arrays.sort(sorted);
            sum += sorted[0].compareTo(wide[0]) + (sorted[7].equals(long_[7]) ? 1 : 0);
        }
        System.out.println(sum);
    }
}
