package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
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

var errManyListeners = &statusError{http.StatusServiceUnavailable, fmt.Sprintf("%d streams of events are open, the "+
	"most that are served; ask again later, or ask GET /status and /history every few seconds", maxListeners)}

// streams bounds the streams of events, and ends them when the server stops.
type streams struct {
	open   chan struct{} // has an element for each stream
	stop   chan struct{} // closed when the server stops
	end    func()        // closes it
	status latestStatus
}

func newStreams() *streams {
	stop := make(chan struct{})
	return &streams{
		open: make(chan struct{}, maxListeners), stop: stop, end: sync.OnceFunc(func() { close(stop) }),
	}
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
	case h.streams.open <- struct{}{}:
		defer func() { <-h.streams.open }()
	default:
		w.Header().Set("Retry-After", "30")
		writeError(w, errManyListeners)
		return
	}
	s := &stream{w: w, c: http.NewResponseController(w)}
	w.Header().Set("X-Accel-Buffering", "no")
	header(w, http.StatusOK, "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	_ = h.stream(r.Context(), s) // the reader has gone or is too slow, or the server stops: nobody is left to tell
}

var errStopping = errors.New("the server stops")

// stream sends events until the reader has gone or the server stops.
func (h *handler) stream(ctx context.Context, s *stream) error {
	if err := s.write("retry: 2000\n\n"); err != nil {
		return err
	}
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	var sent []byte // the status, without its time
	for {
		next := h.History.Next()
		status, err := h.streams.status.get(ctx, h.status)
		if err == nil && !bytes.Equal(status.compared, sent) {
			if err = s.send("status", 0, status.text); err == nil {
				sent = status.compared
			}
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.streams.stop:
			return errStopping
		case <-tick.C:
		case <-next:
			sample := h.History.Last()
			text, err := json.Marshal(sample)
			if err == nil {
				err = s.send("counts", sample.Tick, text)
			}
			if err != nil {
				return err
			}
		}
	}
}

// stream is one reader's.
type stream struct {
	w http.ResponseWriter
	c *http.ResponseController
}

// send sends an event of JSON in one line. An ID of 0 is none.
func (s *stream) send(event string, id int64, text []byte) error {
	head := "event: " + event + "\n"
	if id != 0 {
		head += "id: " + strconv.FormatInt(id, 10) + "\n"
	}
	return s.write(head + "data: " + string(text) + "\n\n")
}

func (s *stream) write(text string) error {
	if err := s.c.SetWriteDeadline(time.Now().Add(listenerTime)); err != nil {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.c.Flush()
}

// latestStatus is the state, which all streams share for statusEvery.
type latestStatus struct {
	mu    sync.Mutex
	at    time.Time
	state eventStatus
}

// eventStatus is a status as an event has it, and what of it is compared with the one before.
type eventStatus struct{ text, compared []byte }

func (l *latestStatus) get(ctx context.Context, now func(ctx context.Context) adminapi.Status) (eventStatus, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.at) < statusEvery/2 {
		return l.state, nil
	}
	status := now(context.WithoutCancel(ctx)) // the others need it, too
	text, err := json.Marshal(status)
	if err != nil {
		return eventStatus{}, err
	}
	status.Now = time.Time{}
	compared, err := json.Marshal(status)
	if err != nil {
		return eventStatus{}, err
	}
	l.at, l.state = time.Now(), eventStatus{text, compared}
	return l.state, nil
}

// errNoHistory is the answer where counts over time are not kept.
var errNoHistory = &statusError{http.StatusNotFound, "counts over time are not kept here"}

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
