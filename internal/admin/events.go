package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// Bounds of GET /events.
const (
	// maxListeners is the most streams at once. A stream keeps no queue: it reads what is newest when it can write.
	maxListeners = 16
	// listenerTime is how long a reader may leave an event unread before its stream ends.
	listenerTime = 5 * time.Second
	// statusEvery is how often the state is compared with the one that was sent last.
	statusEvery = time.Second
)

var errManyListeners = &statusError{
	http.StatusServiceUnavailable, fmt.Sprintf("%d streams of events are open, the most that are served; ask again "+
		"later, or ask GET /status and /history every few seconds", maxListeners),
	http.Header{"Retry-After": {"30"}},
}

// events answers GET /events: a stream of server-sent events, as the HTML standard has them. "status" is the answer of
// GET /status, at the beginning and when it has changed; "counts" is each sample of the history. A reader that is slow
// misses samples and is cut off after listenerTime.
func (h *handler) events(w http.ResponseWriter, r *http.Request) {
	if h.History == nil {
		writeError(w, errNoHistory)
		return
	}
	select {
	case h.listening <- struct{}{}:
		defer func() { <-h.listening }()
	default:
		writeError(w, errManyListeners)
		return
	}
	w.Header().Set("X-Accel-Buffering", "no")
	header(w, http.StatusOK, "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.running, cancel)() //nolint:contextcheck // the server may stop before the request ends
	// It fails if the reader has gone or is too slow, or the server stops: nobody is left to tell.
	_ = h.stream(ctx, &patient{w, http.NewResponseController(w), listenerTime})
}

// stream sends events until ctx is done or the reader has gone.
func (h *handler) stream(ctx context.Context, p *patient) error {
	if _, err := io.WriteString(p, "retry: 2000\n\n"); err != nil {
		return err
	}
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	var sent adminapi.Status // without its time
	for {
		next := h.History.Next()
		status := h.status(context.WithoutCancel(ctx)) // a check has a timeout of its own
		now := status.Now
		status.Now = sent.Now
		if !reflect.DeepEqual(status, sent) {
			sent, status.Now = status, now
			if err := p.send("status", 0, status); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-next:
			sample := h.History.Last()
			if err := p.send("counts", sample.Tick, sample); err != nil {
				return err
			}
		}
	}
}

// send sends an event of JSON in one line. An ID of 0 is none.
func (p *patient) send(event string, id int64, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	head := "event: " + event + "\n"
	if id != 0 {
		head += fmt.Sprintf("id: %d\n", id)
	}
	if _, err := io.WriteString(p, head+"data: "+string(text)+"\n\n"); err != nil {
		return err
	}
	return p.c.Flush()
}

// errNoHistory is the answer where counts over time are not kept.
var errNoHistory = refused(http.StatusNotFound, "counts over time are not kept here")

// history answers GET /history?domain=&rule=&points=60.
func (h *handler) history(r *http.Request) (all adminapi.History, err error) {
	if h.History == nil {
		return all, errNoHistory
	}
	query := r.URL.Query()
	points, err := number(query, "points", 60, 1, Samples)
	if err != nil {
		return all, err
	}
	return h.History.Read(query.Get("domain"), query.Get("rule"), points), nil
}
