package rulefile

import "strings"

// pool is memory for Ts that are used again: setting used to what it was before releases what next returned since.
type pool[T any] struct {
	all  []*T
	used int
}

// next is a T as it was left.
func (p *pool[T]) next() *T {
	if p.used == len(p.all) {
		more := make([]T, 32)
		for i := range more {
			p.all = append(p.all, &more[i])
		}
	}
	p.used++
	return p.all[p.used-1]
}

// arena is memory for copies of short texts.
type arena struct{ last strings.Builder }

func (a *arena) copy(text string) string {
	if a.last.Cap()-a.last.Len() < len(text) {
		a.last.Reset()
		a.last.Grow(max(len(text), 4096))
	}
	from := a.last.Len()
	a.last.WriteString(text)
	return a.last.String()[from:]
}
