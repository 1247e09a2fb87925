// A library that is copied to many files. Build: gcc -O2 -shared -fPIC.
__attribute__((noinline)) long spin(long n) {
  volatile long sum = 0;
  for (long i = 0; i < n; i++)
    sum += i;
  return sum;
}

long work(long n) { return spin(n) + 1; }
