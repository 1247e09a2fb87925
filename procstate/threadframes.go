package procstate

// ThreadFrames is where a runtime keeps the frames of a thread, for the kernel side to copy them:
// offsets are in bytes.
type ThreadFrames struct {
	Current uint64 // address of a word that leads to the frame that runs

	// Bounds is the address of what has the bounds of the thread's stack of frames, 0 for what
	// Current leads to. Low and High are where in that is a word with where the stack begins, and
	// one with where it ends. IsCounted tells that there are two at High: where an area begins at whose
	// end the stack does, and its words. IsDown tells that the stack grows downward; Below are the bytes
	// below where it begins that may be in it as well, as the words at Low and High are out of date at times.
	Bounds            uint64
	Low, High, Below  int
	IsCounted, IsDown bool

	// HasValues tells that values of the frames are in another stack, which grows upward: Values is
	// where in what Current leads to there is a word with where it begins, and ValuesEnd where in
	// the frame that runs, at the low end of their stack, one with where it ends.
	HasValues         bool
	Values, ValuesEnd int

	// Bytes are copied of each frame that is elsewhere, and Head of what Current leads to. IsFrame
	// tells that the word at Current is the address of the frame; else that is First bytes behind the
	// address there. Previous is where in a frame the one before is.
	Bytes, Head     int
	IsFrame         bool
	First, Previous int

	// Object is not 0 where each frame has the address of an object there, of which the word at
	// ObjectWord is copied: of the innermost of them.
	Object, ObjectWord int

	// Entry is not 0 where the frame that runs, and each before it, has a stack of entries of so many
	// bytes, which begins at the word at Low; at Last is the number of the last entry, of 32 bits. One
	// more is copied. Before and After are the bytes around the word at Current that are copied with it.
	Entry, Last, Before, After int

	// Chunk is not 0 where frames of a stack are in objects: the word at Current is an address on the thread's
	// stack, First bytes behind which there is that of an object of Head bytes, in which at Chunk there is that of the
	// first of these.
	Chunk  int
	Chunks FrameChunks

	// Own is not 0 where other threads of the process have their frames in the same way: the address that Current and
	// Bounds of each are counted from is in a word FromThreadPointer bytes behind its thread pointer, or is that where
	// IsThreadPointer says so, and this thread's is Own. Then a thread has them with its first sample.
	Own               uint64
	FromThreadPointer int64
	IsThreadPointer   bool
}

// FrameChunks is how objects have frames of a stack, and refer to each other.
type FrameChunks struct {
	Base  uint64 // that is added to the address of one,
	Shift int    // when it has been shifted by so much,
	Wide  bool   // and has 64 bits: else 32;
	Mark  int    // or 0, or the lowest of four bits of it of which one is set, and behind which it begins

	Beside uint64 // address of a word that tells of such addresses, and is copied as well; 0: none

	Head       int // bytes before the words of frames
	Low, Words int // where in an object the number of the first word in use is, and how many words there are,
	Outer      int // and the address of the object with what is further out
}
