// Command bench measures what swbpf and its peers cost, and prints the figures
// as tables: those of docs/BENCHMARKS.md and docs/SCALING.md. It runs swbpf from
// outside, as a user would; only the names of addresses are asked of package
// symbols.
//
//	go run ./bench                      all tables but those of scaling
//	go run ./bench -records -only go    recordings of workloads whose name contains "go"
//	go run ./bench -o FILE              the tables into the marked blocks of a document, too
//
// It needs root and the programs that bench/install installs.
package main
