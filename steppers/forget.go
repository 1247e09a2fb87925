package steppers

// ForgetImages implements unwind.ImageForgetter.
func (b *Bottom) ForgetImages(isKept func(index uint32) bool) { b.entries.KeepOnly(isKept) }

// ForgetImages implements unwind.ImageForgetter.
func (a *Analysis) ForgetImages(isKept func(index uint32) bool) {
	a.code.KeepOnly(isKept)
	a.bare.KeepOnly(isKept)
	a.kept.images.KeepOnly(isKept)
}

// ForgetImages implements unwind.ImageForgetter.
func (d *Debug) ForgetImages(isKept func(index uint32) bool) {
	if d.tables != nil {
		d.tables.ForgetImages(isKept)
	}
	d.kept.images.KeepOnly(isKept)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Go) ForgetImages(isKept func(index uint32) bool) {
	for i, im := range s.images.Of {
		if im != nil && im.table != nil && !isKept(uint32(i)) {
			s.kept -= im.table.Memory()
		}
	}
	s.images.KeepOnly(isKept)
	s.linked.ForgetImages(isKept)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *FrameFunc) ForgetImages(isKept func(index uint32) bool) {
	s.kept.images.KeepOnly(isKept)
	if a, ok := s.helper.(*FrameAnalyzer); ok {
		a.ForgetImages(isKept)
	}
}

// ForgetImages implements unwind.ImageForgetter.
func (s *SBCL) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }

// ForgetImages implements unwind.ImageForgetter.
func (a *FrameAnalyzer) ForgetImages(isKept func(index uint32) bool) {
	for i, im := range a.images.Of {
		if im != nil && !isKept(uint32(i)) {
			a.kept -= im.kept
		}
	}
	a.images.KeepOnly(isKept)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Wanderer) ForgetImages(isKept func(index uint32) bool) {
	if h, ok := s.helper.(*codeHelper); ok {
		h.images.KeepOnly(isKept)
	}
	if a, ok := s.frames.(*FrameAnalyzer); ok {
		a.ForgetImages(isKept)
	}
}

// ForgetImages implements unwind.ImageForgetter.
func (d *DyninstInstr) ForgetImages(isKept func(index uint32) bool) { d.tramps.KeepOnly(isKept) }
