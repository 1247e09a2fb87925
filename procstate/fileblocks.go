package procstate

import (
	"io"
	"sync"
)

// Room for blocks of files: 2 MB, which is taken as they are read.
const (
	blockBytes = 4 << 10
	blockSets  = 128
	blockWays  = 4
)

// fileBlocks reads files by blocks and keeps those that were read last: who
// looks at code and at its tables looks at the same places one after the other,
// for a few bytes each time. The zero value is empty. It may be used by any
// goroutine.
type fileBlocks struct {
	mu   sync.Mutex
	sets [blockSets][blockWays]fileBlock // what was used last comes first
}

// fileBlock is a piece of a file.
type fileBlock struct {
	file *imageFile // nil when there is none
	off  int64      // a multiple of blockBytes
	data []byte     // shorter than a block at the end of the file
}

// read fills b with what is at an offset of a file, as io.ReaderAt does.
func (c *fileBlocks) read(file *imageFile, b []byte, off int64) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n < len(b) {
		at := off + int64(n)
		data, err := c.block(file, at&^(blockBytes-1))
		if err != nil {
			return n, err
		}
		i := at & (blockBytes - 1)
		if i >= int64(len(data)) {
			return n, io.EOF
		}
		n += copy(b[n:], data[i:])
	}
	return n, nil
}

// block returns the bytes of a block, valid until the next call.
func (c *fileBlocks) block(file *imageFile, off int64) ([]byte, error) {
	set := &c.sets[(uint64(off)/blockBytes^file.ref.Inode)%blockSets]
	i := 0
	for i < blockWays-1 && (set[i].file != file || set[i].off != off) {
		i++
	}
	b := set[i]
	copy(set[1:i+1], set[:i])
	if b.file != file || b.off != off {
		if b.data == nil {
			b.data = make([]byte, blockBytes)
		}
		n, err := file.read(b.data[:blockBytes], off)
		if err != nil && err != io.EOF {
			set[0] = fileBlock{data: b.data}
			return nil, err
		}
		b = fileBlock{file, off, b.data[:n]}
	}
	set[0] = b
	return b.data, nil
}

// forget lets go of all blocks.
func (c *fileBlocks) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sets = [blockSets][blockWays]fileBlock{}
}
