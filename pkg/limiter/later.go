package limiter

// Later is a Store that can also decide a request without a goroutine that waits for the answer.
type Later interface {
	Store
	// TakeLater begins a Take and returns. It returns false, and has done nothing, if the request needs Take. After true,
	// hits and out belong to the store until w.Taken is called: Send has to be called before long.
	TakeLater(hits []Hit, out []Decision, w Waiter) bool
	// Send has what TakeLater has begun sent, in as few calls to the server as it fits in. It does not block.
	Send()
}

// Waiter gets the outcome of a TakeLater. Its methods may be called on any goroutine, also before TakeLater returns,
// and must not block.
type Waiter interface {
	// Taken is called once: out has the decisions, or err says why not, as that of Take.
	Taken(err error)
	// BatchTaken is called once, after Taken, when all requests of the same call to the server have had theirs: what they
	// have to do together is done then. The store knows nothing of w from then on.
	BatchTaken()
	// IsGone reports whether nobody waits for the answer any more. Taken is called all the same, with
	// context.Canceled within 20 ms if the answer does not come before.
	IsGone() bool
}

// EndWait calls both methods of a Waiter that ends without a call to the server.
func EndWait(w Waiter, err error) {
	w.Taken(err)
	w.BatchTaken()
}
