package vmread

import "github.com/swbpf/swbpf/unwind"

// MadeTables returns the tables of a stepper, which are made where there are none yet.
func MadeTables(tables **unwind.Tables) *unwind.Tables {
	if *tables == nil {
		*tables = unwind.NewTables()
	}
	return *tables
}
