<?php
// Works for as many seconds of CPU time as it is told.

class Shape
{
    static function helper($list)
    {
        usort($list, function ($a, $b) {
            return Shape::key($a) - Shape::key($b);
        });
        return $list;
    }

    static function key($x)
    {
        $sum = 0;
        for ($i = 0; $i < 60; $i++) {
            $sum = ($sum * 31 + $x) % 1009;
        }
        return $sum;
    }

    function area()
    {
        return count(self::helper(range(1, 40))) + $this->more();
    }

    function more()
    {
        $sum = 0;
        foreach ($this->generate() as $x) {
            $sum += $x;
        }
        return $sum;
    }

    function generate()
    {
        for ($i = 0; $i < 300; $i++) {
            yield self::key($i);
        }
    }

    function __destruct()
    {
        self::key(1);
    }
}

function fib($n)
{
    return $n < 2 ? $n : fib($n - 1) + fib($n - 2);
}

function thrown($n)
{
    if ($n == 0) {
        throw new Exception('thrown');
    }
    thrown($n - 1);
}

// 80 frames, which take more than what is copied of their stack at once.
function down($n)
{
    $a = $n; $b = $n; $c = $n; $d = $n; $e = $n; $f = $n; $g = $n; $h = $n;
    return $n > 1 ? down($n - 1) + 1 : bottom() + $a + $b + $c + $d + $e + $f + $g + $h;
}

function bottom()
{
    $sum = 0;
    for ($i = 0; $i < 5000; $i++) {
        $sum = ($sum * 31 + $i) % 1009;
    }
    return $sum;
}

function work()
{
    fib(15);
    (new Shape)->area();
    try {
        thrown(20);
    } catch (Exception $e) {
    }
    down(80);
}

function main($seconds)
{
    do {
        work();
        $used = getrusage();
    } while ($used["ru_utime.tv_sec"] + $used["ru_utime.tv_usec"] / 1e6 < $seconds);
}

main((float) $argv[1]);
