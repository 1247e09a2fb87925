<?php
// Sorts by a function of its own until that is long compiled. Before and after it waits to be looked at.

class Sorter
{
    static function sorted($list)
    {
        usort($list, function ($a, $b) {
            return $a * 31 % 1009 - $b * 31 % 1009;
        });
        return $list;
    }

    function sort()
    {
        return count(self::sorted(range(1, 8)));
    }
}

function work()
{
    (new Sorter)->sort();
}

function main()
{
    for ($i = 0; $i < 300; $i++) {
        work();
    }
}

usort($argv, fn($a, $b) => 0);
usleep(400_000);
main();
usleep(400_000);
