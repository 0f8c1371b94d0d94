package redisstore

import "slices"

// few is up to how many values an index searches one by one, which is quicker than a map.
const few = 8

// index numbers values in the order in which they first come, from 0 on.
type index[K comparable] struct {
	all []K
	of  map[K]int // the number of each; empty for few
}

// number returns a value's number. isNew reports that the value has just got it.
func (x *index[K]) number(value K) (i int, isNew bool) {
	if len(x.all) <= few {
		if i = slices.Index(x.all, value); i >= 0 {
			return i, false
		}
	} else if i, known := x.of[value]; known {
		return i, false
	}
	x.all = append(x.all, value)
	if len(x.all) > few {
		if x.of == nil {
			x.of = make(map[K]int)
		}
		for i := len(x.of); i < len(x.all); i++ {
			x.of[x.all[i]] = i
		}
	}
	return len(x.all) - 1, true
}

// reset forgets all values, and keeps the memory.
func (x *index[K]) reset() {
	clear(x.all)
	clear(x.of)
	x.all = x.all[:0]
}
