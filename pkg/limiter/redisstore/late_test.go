package redisstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A timeout is a failure of Redis only if Redis was silent for that time and this process is punctual. Otherwise the
// request waits longer, and in the end gets ErrLate.
func TestLateIsNotFailed(t *testing.T) {
	const timeout = 15 * time.Millisecond
	for name, tt := range map[string]struct {
		waited, silent, alarm time.Duration // until now: since the call began, since Redis is silent, since the alarm was due
		why                   error         // nil: it waits on
	}{
		"Redis is silent":                     {15 * time.Millisecond, 15 * time.Millisecond, 0, context.DeadlineExceeded},
		"it was silent before the call began": {15 * time.Millisecond, time.Second, 0, context.DeadlineExceeded},
		"it had no time to answer":            {20 * time.Millisecond, 5 * time.Millisecond, 0, nil},
		"it has answered others":              {20 * time.Millisecond, 0, 0, nil},
		"this process did not run":            {20 * time.Millisecond, 20 * time.Millisecond, 10 * time.Millisecond, nil},
		"too late, and Redis answers":         {30 * time.Millisecond, 0, 0, limiter.ErrLate},
		"too late, and did not run":           {30 * time.Millisecond, 30 * time.Millisecond, 20 * time.Millisecond, limiter.ErrLate},
		"too late, and Redis is silent":       {30 * time.Millisecond, 30 * time.Millisecond, 0, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := silentStore(t, timeout, false).queue
				c := q.newCall(t.Context(), time.Now(), time.Now().Add(q.timeout))
				q.waiting = append(q.waiting, c) // no alarm is set
				time.Sleep(tt.waited)
				q.alarmAt = time.Now().Add(-tt.alarm)
				if tt.silent > 0 {
					q.silent = time.Now().Add(-tt.silent)
				}
				ends, _ := q.expired()
				switch {
				case tt.why == nil && len(ends) != 0:
					t.Errorf("the call ends with %v, want it to wait", ends[0].why)
				case tt.why != nil && (len(ends) != 1 || !errors.Is(ends[0].why, tt.why)):
					t.Errorf("the call ends with %v, want %v", ends, tt.why)
				}
				q.waiting = nil
			})
		})
	}
}

// A caller with a deadline gets an error before the deadline, even if this process is late.
func TestLateBeforeTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := silentStore(t, 15*time.Millisecond, false).queue
		for deadline, want := range map[time.Duration]time.Duration{
			20 * time.Millisecond: 18 * time.Millisecond, // Envoy's
			time.Second:           30 * time.Millisecond,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			c := q.newCall(ctx, time.Now(), time.Now().Add(q.timeout))
			if got := time.Until(c.late); got != want {
				t.Errorf("with a deadline in %s a request waits %s at most, want %s", deadline, got, want)
			}
			cancel()
		}
	})
}

// If more calls wait than allowed, the oldest calls are shed.
func TestOldestIsShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := silentStore(t, time.Second, false).queue
		all := make([]*call, maxWaiting+2)
		for i := range all {
			all[i] = q.newCall(t.Context(), time.Now(), time.Now().Add(q.timeout))
		}
		q.add(all...) // and nobody sends them
		time.Sleep(2 * noticeCancel)
		for i, c := range all {
			select {
			case err := <-c.done:
				if i >= 2 || !errors.Is(err, limiter.ErrShed) {
					t.Fatalf("call %d of %d ends with %v", i, len(all), err)
				}
			default:
				if i < 2 {
					t.Errorf("call %d of %d is not shed", i, len(all))
				}
			}
		}
		time.Sleep(mostLate * time.Second)
	})
}
