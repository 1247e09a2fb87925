package php

// PHP keeps of what it runs (Zend/zend_globals.h, zend_compile.h):
//
//	zend_executor_globals  the frame that runs, and where the stack of frames is: of a process, or
//	                       with ZTS of each thread
//	zend_execute_data      a frame: the instruction, the function, and the frame before
//	zend_op_array          a function of PHP, or what a file does itself
//	zend_internal_function one that is written in C
//
// Of the frames that execute_ex runs for one call of it, the outermost is marked as such
// (ZEND_CALL_TOP), and the innermost is in a register.

// fields are the offsets of fields in PHP's structures that are not the same in all versions.
type fields struct {
	current, stackLow, stackHigh uint64 // of zend_executor_globals
	last, opcodes                uint64 // of a zend_op_array, how many instructions it has and where
	fileName, firstLine          uint64
	closureCount, closures       uint64 // how many functions without a name it has, and where; 0: there is no list
	execute                      uint64 // of a zend_generator, its frame,
	placeholder, parent          uint64 // what stands for those that wait for it, and what it waits for
}

// phpVersions are the fields by the number of the interface to extensions (ZEND_MODULE_API_NO),
// which is another one in each version.
var phpVersions = map[uint32]*fields{
	20190902: {current: 488, stackLow: 472, stackHigh: 456, last: 60, opcodes: 64, fileName: 136, firstLine: 144, execute: 64, parent: 160, placeholder: 200},                                    // 7.4
	20200930: {current: 488, stackLow: 472, stackHigh: 456, last: 68, opcodes: 72, fileName: 144, firstLine: 152, execute: 64, parent: 160, placeholder: 200},                                    // 8.0
	20210902: {current: 488, stackLow: 472, stackHigh: 456, last: 68, opcodes: 72, fileName: 144, firstLine: 152, closureCount: 172, closures: 184, execute: 56, parent: 152, placeholder: 184},  // 8.1
	20220829: {current: 488, stackLow: 472, stackHigh: 456, last: 80, opcodes: 88, fileName: 152, firstLine: 160, closureCount: 180, closures: 192, execute: 56, parent: 152, placeholder: 184},  // 8.2
	20230831: {current: 488, stackLow: 472, stackHigh: 456, last: 76, opcodes: 80, fileName: 144, firstLine: 152, closureCount: 172, closures: 184, execute: 56, parent: 152, placeholder: 184},  // 8.3
	20240924: {current: 488, stackLow: 472, stackHigh: 456, last: 96, opcodes: 104, fileName: 168, firstLine: 176, closureCount: 188, closures: 200, execute: 56, parent: 152, placeholder: 184}, // 8.4
	20250925: {current: 512, stackLow: 496, stackHigh: 480, last: 96, opcodes: 104, fileName: 168, firstLine: 176, closureCount: 188, closures: 200, execute: 56, parent: 152, placeholder: 184}, // 8.5
}

// Offsets that all versions have.
const (
	phpOpline     = 0  // of a zend_execute_data
	phpFunc       = 24 // its function
	phpThis       = 32
	phpInfo       = 40
	phpPrevious   = 48
	phpFrameBytes = 56 // up to here

	phpType  = 0 // of a function
	phpName  = 8
	phpScope = 16  // its class
	phpHead  = 208 // bytes that all fields are in

	phpClassName = 8  // of a zend_class_entry
	phpOpSize    = 32 // of an instruction
	phpOpLine    = 24

	phpStringSize = 16 // of a zend_string
	phpStringData = 24

	phpCallTop = 1 << 17 // in phpInfo: execute_ex was called for this frame
)

// Types of functions.
const (
	internal = 1
	user     = 2
	eval     = 4
)
