package procstate

import "bytes"

// LinkJITObject makes an Image of an object file as a process has it in memory,
// which is changed.
func LinkJITObject(raw []byte) (*Image, error) {
	im, err := parseImage(bytes.NewReader(raw), int64(len(raw)), "[jit]")
	if err != nil {
		return nil, err
	}
	return im, im.link(raw)
}
