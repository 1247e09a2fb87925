// Package perfdata reads the files that `perf record` of Linux writes: perf.data, as it is
// on disk and as it goes through a pipe.
//
// It is apart from all that makes use of such files, and knows nothing of stacks, processes
// or names: it turns bytes into records, in order of time. The format is that of
// tools/perf/Documentation/perf.data-file-format.txt in the kernel's sources, records are
// those of <linux/perf_event.h> and of tools/lib/perf/include/perf/event.h. Files are little-endian
// there and here; those of machines of the other byte order are refused by ErrByteOrder.
//
// A [File] is what is known of a recording as a whole: its events, the machine, build IDs.
// It does not change, and may be used by several goroutines. A [Reader] goes through the
// records once, and belongs to one goroutine:
//
//	f, err := perfdata.Open(file, size)
//	r := f.Records()
//	defer r.Close()
//	for {
//		rec, err := r.Next()
//		if err == io.EOF { ... }
//		switch rec.Type { case perfdata.TypeSample: err := rec.Sample(&sample) ... }
//	}
//
// Files are not trusted: what a record says of lengths is checked against the bytes that
// there are, and memory grows with those, or up to a bound.
package perfdata
