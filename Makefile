# The project builds with `go build ./cmd/swbpf` alone; this file names the
# rest.

.PHONY: build generate test fuzz ci bench bench-docs bench-peers clean

build:
	CGO_ENABLED=0 go build -trimpath -o swbpf ./cmd/swbpf

# Compiles bpf/ anew. Needs clang-19 and libbpf's headers.
generate:
	go generate ./...

# One package at a time: what one records must not be in the figures of another.
test:
	go test -p 1 ./...

# Each fuzz target for a while. Inputs that reach new code are made smaller ten times,
# not for a minute each, which would be nearly all the time there is.
FUZZTIME = 30s
fuzz:
	@grep -r --include='*_test.go' '^func Fuzz' . | sed -E 's|^(.*)/[^/]*:func ([A-Za-z0-9]*).*|\1 \2|' | sort | \
	while read dir target; do \
		echo "$$dir $$target"; \
		go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$dir || exit 1; \
	done

# What has to hold before a change lands; installs what it needs.
ci:
	.ci/run

# Costs beside those of perf, bpftrace, eu-stack and gdb; as root. `make bench
# BENCH=-short` takes two minutes. bench-docs puts the tables into docs/, for
# which the machine should have nothing else to do.
BENCH =
bench: bench-peers
	go run ./bench $(BENCH)

bench-docs: bench-peers
	go run ./bench -o docs/BENCHMARKS.md $(BENCH)
	go run ./bench -scaling -o docs/SCALING.md $(BENCH)

bench-peers:
	bench/install

clean:
	rm -rf swbpf build
