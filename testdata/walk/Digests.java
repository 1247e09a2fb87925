import java.security.MessageDigest;

/** Makes digests for some milliseconds. */
public class Digests {
    public static void main(String[] args) throws Exception {
        long end = System.nanoTime() + Long.parseLong(args[0]) * 1_000_000L, sum = 0;
        byte[] data = new byte[4096];
        String[] names = {"MD5", "SHA-1", "SHA-256", "SHA-512"};
        MessageDigest[] digests = new MessageDigest[names.length];
        for (int i = 0; i < names.length; i++) digests[i] = MessageDigest.getInstance(names[i]);
        while (System.nanoTime() < end) {
            for (MessageDigest d : digests) sum += d.digest(data)[0];
            data[5]++;
        }
        System.out.println(sum);
    }
}
