package procstate

import "encoding/binary"

// protoField is the value of a field of protobuf.
type protoField struct {
	number uint64
	bytes  []byte
}

// eachField calls fn for the fields of a message, up to what is damaged.
func eachField(b []byte, fn func(field uint64, f protoField)) {
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		if n <= 0 {
			return
		}
		b = b[n:]
		var f protoField
		switch key & 7 {
		case 0:
			if f.number, n = binary.Uvarint(b); n <= 0 {
				return
			}
			b = b[n:]
		case 1:
			if len(b) < 8 {
				return
			}
			f.number, b = binary.LittleEndian.Uint64(b), b[8:]
		case 2:
			size, n := binary.Uvarint(b)
			if n <= 0 || size > uint64(len(b)-n) {
				return
			}
			f.bytes, b = b[n:n+int(size)], b[n+int(size):]
		case 5:
			if len(b) < 4 {
				return
			}
			f.number, b = uint64(binary.LittleEndian.Uint32(b)), b[4:]
		default:
			return
		}
		fn(key>>3, f)
	}
}
