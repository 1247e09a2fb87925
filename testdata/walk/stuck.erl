-module(stuck).
-export([main/0]).

%% Has a process run for ever, after it has said what Erlang itself says of its calls.
main() ->
    erlang:system_flag(backtrace_depth, 100),
    spawn(fun() -> outer(lists:seq(1, 200)) end),
    receive stop -> ok end.

outer(L) -> [R || R <- caught(L, 3)].

caught(L, N) ->
    try mapped(L, N) of
        R -> [N | R]
    catch
        error:_ -> L
    end.

mapped(L, N) ->
    A = length(L),
    M = lists:map(fun(X) -> inner(X, L) + N end, [1, 2, 3]),
    [A | M].

inner(X, L) ->
    B = X * 2,
    B + told(process_info(self(), current_stacktrace), L) + X.

told({current_stacktrace, Calls}, L) ->
    [io:format("~w:~w/~w ~s:~w~n", [M, F, A, proplists:get_value(file, I, ""), proplists:get_value(line, I, 0)]) || {M, F, A, I} <- Calls],
    io:format("~n"),
    spin(length(L) - 200, L). % 0, of which the compiler does not know that it never comes to -1

spin(-1, _) -> 0;
spin(N, L) when N rem 256 > 2 -> spin(N + 1, L);
spin(N, L) when N rem 256 =:= 0 -> spin(N + length(L) - 199, L);
spin(N, L) when N rem 256 =:= 1 -> spin(N + erlang:phash2(L, 1) + 1, L);
spin(N, L) -> spin((N + length(lists:reverse(L))) rem 1024 + 1, L).
