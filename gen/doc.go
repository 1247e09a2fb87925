// Package gen holds the compiled BPF programs of ../bpf and the Go view of
// their types, maps and constants. Everything but this file is generated;
// only package loader uses it.
package gen

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package gen -cc clang-19 -strip llvm-strip-19 -target amd64,arm64 -type sample_header -type region_header -type replaced_return -type off_cpu_end -type unsampled -type block_end -type thread_times -type counters -type go_process -type cpu_ring -type page_tables -type program_file -type kernel_regs Sampler ../bpf/sampler.bpf.c -- -O2 -mcpu=v2 -Wall -Wextra -Wno-unused-parameter -Werror
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package gen -no-global-types -cc clang-19 -strip llvm-strip-19 -target amd64,arm64 -type task_probe Probes ../bpf/probes.bpf.c -- -O2 -mcpu=v2 -Wall -Wextra -Wno-unused-parameter -Werror
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package gen -cc clang-19 -strip llvm-strip-19 -target amd64,arm64 -type kernel_memory KernelMemory ../bpf/kernelmemory.bpf.c -- -O2 -mcpu=v2 -Wall -Wextra -Wno-unused-parameter -Werror
