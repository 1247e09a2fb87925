# Functions of R that call each other in all ways there are, for TestRecordR: that has what each calls.
work <- function(n) { s <- 0; for (i in seq_len(n)) s <- s + i * i; s }
allocate <- function(n) { l <- NULL; for (i in seq_len(n)) l <- list(l, i); work(5) }
fib <- function(n) if (n < 2) n else fib(n - 1) + fib(n - 2)
applies <- function() lapply(1:20, function(x) work(200))
maps <- function() Map(function(a, b) allocate(50), 1:10, 1:10)
calls <- function() for (i in 1:20) do.call("work", list(100))
callsValue <- function() for (i in 1:20) do.call(allocate, list(30))
parses <- function() for (i in 1:5) eval(parse(text = paste0("work(", 50 + i, ")")))
area <- function(s) UseMethod("area")
area.square <- function(s) work(s$side)
area.circle <- function(s) allocate(s$side)
caught <- function() tryCatch({ work(300); stop("an error") }, error = function(e) allocate(50))
account <- new.env()
account$add <- function(n) work(n)
adds <- function() for (i in 1:10) account$add(100)
lazy <- function(x) { force(x); x }
forces <- function() lazy(allocate(200))
reduces <- function() Reduce(function(a, b) a + work(b), 1:50)
main <- function(seconds) {
  until <- sum(proc.time()[1:2]) + seconds
  while (sum(proc.time()[1:2]) < until) {
    fib(12); applies(); maps(); calls(); callsValue(); parses()
    area(structure(list(side = 1000), class = "square")); area(structure(list(side = 300), class = "circle"))
    caught(); adds(); forces(); reduces(); stats::median(c(1, 2, 3)); (function(n) work(n))(500)
  }
}
main(as.numeric(commandArgs(TRUE)[1]))
