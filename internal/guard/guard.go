// Package guard stands before a limiter.Store that is asked over a network, as a limiter.Store itself: it answers
// here what need not be asked there.
package guard
