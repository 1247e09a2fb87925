# Computes for so many seconds of CPU time: methods, blocks, methods of C that call them, a fiber, recursion.
class Shape
  def area(n)
    helper(n) + more(n)
  end

  def more(n)
    (n % 50).times.map { |x| square(x) }.sum
  end
end

def square(x)
  x * x
end

def helper(n)
  n.odd? ? n.to_s.size : (0..n % 30).sort_by { |x| key(x) }.first
end

def key(x)
  -x * 7 % 31
end

def fib(n)
  n < 2 ? n : fib(n - 1) + fib(n - 2)
end

def numbers
  Enumerator.new { |y| 5.times { |i| y << fib(i + 6) } }
end

def raised(n)
  n == 0 ? raise("done") : raised(n - 1)
rescue RuntimeError
  square(n)
end

def work
  s = Shape.new
  e = numbers
  3.times { e.next }
  fib(12) + (0...100).sum { |n| s.area(n) } + raised(5)
end

def main(seconds)
  finish = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) + seconds
  work while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < finish
end

main(ARGV[0].to_f)
