# Threads that wait in calls of all kinds. Each writes what Ruby says of its stack, a line of
# JSON: the number of the thread, and labels with lines, innermost first.
$stdout.sync = true
$says = Queue.new

def tid
  File.readlink("/proc/thread-self")[/\d+\z/]
end

def say(locations)
  calls = locations.map { |l| "\"#{l.label} #{l.path}:#{l.lineno}\"" }
  $says << "{\"TID\": #{tid}, \"Calls\": [#{calls.join(", ")}]}"
end

def wait_here
  say(caller_locations(0)); sleep
end

class Calls
  Pair = Struct.new(:key) do
    include Comparable
    def <=>(other)
      $calls.wait
    end
  end

  def wait
    wait_here
  end

  def blocks
    [1].each { |a| { a => 2 }.map { |k, v| k.times { [v].each_with_index { wait } } } }
  end

  def deep(n)
    n == 0 ? wait : deep(n - 1)
  end

  def odd(n)
    [n].each { |m| m == 0 ? wait : even(m - 1) }
  end

  def even(n)
    Fiber.new { send(:odd, n) }.resume
  end

  def failed
    raise "no"
  rescue => e
    begin
      e.message
    ensure
      wait
    end
  end

  def ensured
    [1].each { return 1 }
  ensure
    wait
  end

  define_method(:defined) { |n = 1| instance_exec(n) { wait } }

  def method_missing(name, *args, &block)
    name == :missing ? block.call(*args) : super
  end

  def respond_to_missing?(*)
    true
  end

  def escaped
    n = 3
    add = ->(m) { n += m; wait }
    made = proc { |m| add.call(m) }
    missing(4, &made)
  end

  def evaluated
    eval("[1].each { |x| instance_eval 'wait' }", binding, "evaluated.rb", 7)
  end

  def sorted
    [Pair.new(1), Pair.new(2)].max
  end

  def enumerated
    Enumerator.new { |y| y << 1; wait }.lazy.map { |x| x + 1 }.each { |x| x }
  end

  def external
    e = Enumerator.new { |y| y << 1; wait }
    2.times { e.next }
  end

  def to_s
    wait
  end

  def shown
    "#{self} #{"%s" % [self]}"
  end

  def thrown
    catch(:a) { catch(:b) { throw :b }; wait }
  end

  def self.made(&block)
    Class.new { define_method(:call, &block); class << self; def build; new.call; end; end }.build
  end

  def singleton
    me = self
    Calls.made { me.wait }
  end

  def after_deep
    begin
      endless(0)
    rescue SystemStackError
      1
    end
    wait
  end

  def endless(n)
    endless(n + 1)
  end

  def cleaned
    made = (1..50).map { |i| eval("proc { |&b| b.call }") }
    made = made.last
    GC.start
    GC.compact if GC.respond_to?(:compact)
    made.call { %w[a].sort_by { |s| wait } }
  end

  def symbol
    [self].each(&:wait)
  end

  def inject
    (1..3).inject { |sum, n| sum + [n].sum { |m| wait } }
  end
end

Calls.class_eval <<~RUBY, "long.rb", 1
  def long(n)
    a = 0
#{(1..400).map { |i| "    a = #{i} if n == #{i}#{"\n" * (i % 3)}" }.join("\n")}
    wait
#{(1..400).map { |i| "    a = #{i} if n == #{i}" }.join("\n")}
  end
RUBY

$calls = Calls.new
calls = Calls.instance_methods(false) - %i[wait deep odd even to_s method_missing respond_to_missing? endless long]
threads = calls.map { |name| Thread.new { $calls.public_send(name) } }
threads << Thread.new { $calls.deep(300) } << Thread.new { $calls.odd(9) } << Thread.new { $calls.long(1000) }
threads.size.times { puts $says.pop }
say(caller_locations(0)); puts $says.pop; sleep
