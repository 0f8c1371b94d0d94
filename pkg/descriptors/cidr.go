package descriptors

import (
	"github.com/gaissmai/bart"
)

// blocks finds the rule of the longest block of addresses that holds a value.
type blocks struct {
	table *bart.Table[*Pattern] // nil: none
}

// match is the longest block's, nil if none holds the value or it is no address.
func (b *blocks) match(value string) *Pattern {
	if b.table == nil {
		return nil
	}
	addr, ok := address(value)
	if !ok {
		return nil
	}
	p, _ := b.table.Lookup(addr)
	return p
}
