<?php
// Writes as a line of JSON what it runs by its own account, innermost first, and sleeps. The calls
// are of all kinds that PHP has. With "fiber" they are in a fiber, where there are any.
namespace App;

trait Told
{
    function __call($name, $arguments)
    {
        return eval('return $this->inEval();');
    }
}

class Gen
{
    use Told;

    static function inner()
    {
        yield 1;
        yield (new self)->magic(1, 2);
    }

    static function middle()
    {
        yield from self::inner();
    }

    static function outer()
    {
        yield 0;
        yield from self::middle();
    }

    function inEval()
    {
        $call = [$this, 'sorted'];
        return $call();
    }

    function sorted()
    {
        $list = [2, 1];
        usort($list, function ($a, $b) {
            return (new class {
                function __toString()
                {
                    return caught();
                }
            }) . '';
        });
    }
}

class Ended
{
    function __destruct()
    {
        recursion(100);
    }
}

function caught()
{
    try {
        throw new \Exception('caught');
    } catch (\Exception $e) {
        return ends();
    } finally {
        strlen('finally');
    }
}

// The object ends with the function that has it, which its caller then has left.
function ends()
{
    $ended = new Ended;
    return 'ended';
}

function recursion($n)
{
    if ($n > 0) {
        return recursion($n - 1);
    }
    return array_map('array_map', [fn($x) => told()], [[1]]);
}

function line($at)
{
    return $at['file'] . ':' . $at['line'];
}

function told()
{
    $trace = debug_backtrace();
    $calls = ['sleep :0'];
    $at = __FILE__ . ':' . (__LINE__ + 16); // of the sleep
    foreach ($trace as $call) {
        $name = (isset($call['class']) ? $call['class'] . '::' : '') . $call['function'];
        $name = explode("\0", $name)[0] . (strpos($name, "\0") ? '::' . $call['function'] : '');
        $file = explode(':', $at)[0];
        if ($name == 'include') {
            $name = '<file ' . basename($file) . '>';
        } elseif ($name == 'eval') {
            $name = '<eval ' . basename(explode(' : ', $at)[0]) . '>';
            $at = preg_replace('/ : eval.*/', " : eval()'d code:1", $at);
        }
        $calls[] = $name . ' ' . $at;
        $at = isset($call['file']) ? line($call) : ':0';
    }
    $calls[] = '<file ' . basename(__FILE__) . '> ' . $at;
    file_put_contents('php://stdout', json_encode(['tid' => getmypid(), 'calls' => $calls]) . "\n");
    sleep(10000);
}

function main()
{
    foreach (Gen::outer() as $x) {
    }
}

if (($argv[1] ?? '') == 'fiber') {
    $fiber = new \Fiber(function () {
        $inner = new \Fiber(function () {
            \Fiber::suspend(1);
            recursion(3);
        });
        $inner->start();
        $inner->resume();
    });
    $fiber->start();
} else {
    for ($i = 0; $i < 200; $i++) { // to be compiled
        array_map(fn($x) => line(['file' => 'x', 'line' => $i]), range(1, 20));
    }
    file_put_contents(__DIR__ . '/included.php', "<?php\n\nApp\\main();\n");
    include __DIR__ . '/included.php';
}
