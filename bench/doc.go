// Command bench measures recordings of real programs and prints the figures
// as a table. It is a package of its own because it runs swbpf from outside,
// as a user would, and needs none of its packages.
//
//	go run ./bench             every workload at 99 and 997 Hz
//	go run ./bench -only go    workloads whose name contains "go"
//
// It needs root, g++, python3, xz and redis, and takes some minutes.
package main
