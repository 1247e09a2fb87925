# Makes functions, calls them and lets go of them, for some seconds of the time that it runs.
def helper(n)
  total = i = 0
  while i < n
    total += i
    i += 1
  end
  total
end

def work
  50.times do |k|
    eval("o = Object.new; def o.g#{k}; 20.times { helper(3000) }; end; o.g#{k}")
    GC.start if k == 25
  end
end

work while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < ARGV[0].to_f
