package rlqs

import (
	"time"

	"google.golang.org/grpc"
)

// writer sends what comes into the outbox of one stream.
type writer struct {
	s      *Service
	stream grpc.ServerStream
	box    *outbox

	last  chan struct{} // closed for the last response
	ended chan struct{} // closed when nothing more is sent, because of err
	err   error
}

// run sends until a response cannot be sent, or the last one is.
func (w *writer) run() {
	defer close(w.ended)
	defer func() {
		if p := recover(); p != nil {
			w.err = w.s.panicked(w.stream.Context(), "response", p)
		}
	}()
	for {
		select {
		case <-w.box.full:
			if w.err = w.s.send(w.stream, w.box); w.err != nil {
				return
			}
		case <-w.last:
			w.err = w.s.send(w.stream, w.box)
			return
		case <-w.stream.Context().Done():
			return
		}
	}
}

// finish sends the last response, unless the client does not read.
func (w *writer) finish() error {
	close(w.last)
	timer := time.NewTimer(lastIn)
	defer timer.Stop()
	select {
	case <-w.ended:
		return w.err
	case <-timer.C:
		return nil
	}
}

// send sends all that is in the outbox in one response.
func (s *Service) send(stream grpc.ServerStream, box *outbox) error {
	all := box.take()
	if len(all) == 0 {
		return nil
	}
	if err := stream.SendMsg(responseOf(all)); err != nil {
		return err
	}
	s.sent.Add(1)
	return nil
}
