package variables

// eachOldEntry calls fn for the entries of a map of Go before 1.24 until it
// returns false; whole tells that it was called for all of them. They are in
// 1<<B buckets of eight; while the map grows, in the old buckets as well that
// were not moved yet (runtime/map.go).
func (v *Value) eachOldEntry(fn func(key, elem *Value) bool) (whole bool) {
	const sameSizeGrow = 8
	log, err := v.member("B")
	flags, err2 := v.member("flags")
	if err != nil || err2 != nil || log > 40 {
		return false
	}
	left := uint64(maxGroups)
	if !v.eachBucket("buckets", 1<<log, &left, fn) {
		return false
	}
	if flags&sameSizeGrow == 0 {
		log = max(log, 1) - 1
	}
	return v.eachBucket("oldbuckets", 1<<log, &left, fn)
}

// eachBucket calls fn for the entries of some of a map's buckets and of those
// behind them, of which as many may be read as left says.
func (v *Value) eachBucket(name string, n uint64, left *uint64, fn func(key, elem *Value) bool) (whole bool) {
	const evacuatedX, minTopHash = 2, 5 // between them: all of the bucket was moved
	array := memberOf(v.Type.Strip(), name)
	first, err := v.member(name)
	if err != nil {
		return false
	}
	bucket := array.Type.Strip().Elem()
	size, ok := bucket.Size()
	t := bucket.Strip()
	hashes, keys, elems := memberOf(t, "tophash"), memberOf(t, "keys"), memberOf(t, "values")
	if first == 0 || !ok || hashes == nil || keys == nil || elems == nil {
		return first == 0
	}
	key, elem := keys.Type.Strip().Elem(), elems.Type.Strip().Elem()
	keySize, ok1 := key.Size()
	elemSize, ok2 := elem.Size()
	if !ok1 || !ok2 {
		return false
	}
	for i := range n {
		for at := first + i*size; at != 0; {
			if *left == 0 {
				return false
			}
			*left--
			b := v.f.at(bucket, at)
			top, err := b.bytes(hashes.Offset, 8)
			if err != nil {
				return false
			}
			if top[0] >= evacuatedX && top[0] < minTopHash {
				break
			}
			for j, h := range top {
				if h >= minTopHash && !fn(b.part(key, keys.Offset+uint64(j)*keySize), b.part(elem, elems.Offset+uint64(j)*elemSize)) {
					return false
				}
			}
			if at, err = b.member("overflow"); err != nil {
				return false
			}
		}
	}
	return true
}
